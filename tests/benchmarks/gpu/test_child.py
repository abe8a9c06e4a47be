import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gpu import child
from benchmarks.gpu.child import ChildError


def _call(function, *arguments, limit_s=60.0, environment=None):
    return child.call(function, *arguments, limit_s=limit_s, environment=environment)


def test_what_a_function_returns(tmp_path):
    assert _call(os.getenv, "XLA_A_NAME", environment={"XLA_A_NAME": "value"}) == "value"


def test_a_failure_says_what_was_raised():
    with pytest.raises(ChildError, match=r"^mkdir failed: FileNotFoundError: .*/no/such/folder"):
        _call(os.mkdir, "/no/such/folder")


def test_a_death_is_a_failure():
    with pytest.raises(ChildError, match="abort failed: "):
        _call(os.abort)


def test_one_that_takes_too_long_is_ended_with_what_it_started(tmp_path):
    file = tmp_path / "pid"
    command = [
        sys.executable,
        "-c",
        f"import os, time; open({str(file)!r}, 'w').write(str(os.getpid())); time.sleep(99)",
    ]
    with pytest.raises(ChildError, match="call was not done after 3 s"):
        _call(subprocess.call, command, limit_s=3.0)
    deadline = time.monotonic() + 10
    while _runs(int(file.read_text())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(int(file.read_text()))


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
