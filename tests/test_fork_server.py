"""A forked process is as a fresh one, but for torch."""

from __future__ import annotations

import os
import textwrap

import pytest

from tests.fork_server import ForkServer


@pytest.fixture(scope="module")
def server():
    with ForkServer() as found:
        yield found


def test_a_snippet_finds_nothing_of_this_package(server):
    code = """
        import os, sys, threading
        assert __name__ == "__main__" and sys.argv == ["-c"] and os.environ["MINE"] == "1"
        assert not [name for name in sys.modules if name.partition(".")[0] in ("jax", "tests")]
        assert "lazy_runtime.platform.xla_devices" not in sys.modules and threading.active_count() == 1
        import torch
        print(torch.ones(2, device="xla").sum().item())
        print("said", file=sys.stderr)
        os.environ["MINE"] = "2"
    """
    for _ in range(2):
        assert server.run(textwrap.dedent(code), {**os.environ, "MINE": "1"}, 60) == (0, "2.0\n", "said\n")


def test_how_it_ends(server):
    assert server.run("raise SystemExit(3)", dict(os.environ), 60) == (3, "", "")
    status, _, err = server.run("import warnings; warnings.warn('so')", dict(os.environ), 60)
    assert status == 1
    assert err.rstrip().endswith("UserWarning: so")
    assert server.run("import os; os.abort()", dict(os.environ), 60)[0] == -6
    with pytest.raises(TimeoutError, match=r"took more than 0\.2 s\nbefore"):
        server.run("import time; print('before', flush=True); time.sleep(60)", dict(os.environ), 0.2)
    assert server.run("print('after')", dict(os.environ), 60) == (0, "after\n", "")
