"""Ctrl-C at random moments: what was begun ends in KeyboardInterrupt, the process goes on, and nothing is lost."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("interrupted.py")
#: Autograd's anomaly mode, which AOTAutograd turns on, warns of the backward pass that was interrupted.
COMMAND = [sys.executable, "-X", "faulthandler", "-W", "error", "-W", "ignore:Error detected in:UserWarning"]


def interrupted(seed, moments, timeout):
    result = subprocess.run(
        [*COMMAND, str(PROGRAM), str(seed), str(moments)], capture_output=True, text=True, check=False, timeout=timeout
    )
    assert result.returncode == 0, f"exit status {result.returncode}\n{result.stdout}\n{result.stderr}"
    return int(result.stdout.splitlines()[-1].removeprefix("interrupted "))


def test_some_moments():
    assert interrupted(0, 12, 600) > 0


@pytest.mark.long
def test_a_hundred_moments():
    assert interrupted(1, 100, 3000) > 30


@pytest.mark.long
@pytest.mark.parametrize("twice", [False, True])
def test_the_process_ends_as_python_does(twice):
    """Nobody catches it: the process ends with the traceback of KeyboardInterrupt, not by a crash."""
    moment = random.Random(0)
    for _ in range(10):
        command = [*COMMAND, str(PROGRAM), "0", "0", "forever"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            for _ in range(1 + twice):
                time.sleep(moment.uniform(0, 3))
                process.send_signal(signal.SIGINT)
            try:
                _, errors = process.communicate(timeout=120)
            except subprocess.TimeoutExpired:
                process.kill()  # else leaving the block would wait for it
                raise
        assert process.returncode in (1, -signal.SIGINT), errors
        assert "KeyboardInterrupt" in errors
