"""A process that has imported torch, and forks one for each snippet of code: six tenths of a fresh one's time.

As a script it serves jobs from its standard input, one JSON object a line, and answers each with its exit status.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
from pathlib import Path
from typing import Any

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


class ForkServer:
    """Starts the server at the first snippet; as a context, ends it."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[str] | None = None

    def run(self, code: str, environment: dict[str, str], timeout: float) -> tuple[int, str, str]:
        """Runs a snippet as `python -W error -c` does, but for the import of torch itself.

        Args:
            environment: of its process; the snippet's torch loads its backends under it.
            timeout: seconds.

        Returns: the exit status, negative for a signal, and what went to standard output and error.

        Raises:
            TimeoutError: the snippet was ended because it took longer.
        """
        server = self._started()
        assert server.stdin is not None
        assert server.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder) / "out", Path(folder) / "err"
            job = {"code": code, "environment": environment, "timeout": timeout, "out": str(out), "err": str(err)}
            server.stdin.write(json.dumps({**job, "folder": os.getcwd()}) + "\n")
            server.stdin.flush()
            status = json.loads(server.stdout.readline())
            if status is None:
                raise TimeoutError(f"a snippet took more than {timeout} s\n{out.read_text()}\n{err.read_text()}")
            return status, out.read_text(), err.read_text()

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *error: object) -> None:
        if self._server is not None:
            with self._server:  # closes its input, which ends it
                pass

    def _started(self) -> subprocess.Popen[str]:
        if self._server is None:
            self._server = subprocess.Popen(
                [sys.executable, "-W", "error", __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, AUTOLOAD: "0"},
            )
        return self._server


def _serve() -> dict[str, Any] | None:
    """Forks for each job, and returns it in its process; returns None in the server, at the end of its input."""
    import torch.distributed.tensor  # noqa: F401  torch imports it at the first operator of a subclass

    assert threading.active_count() == 1, "a process with threads is not forked"
    with os.fdopen(os.dup(1), "w") as replies:
        for line in sys.stdin:
            job = json.loads(line)
            child = os.fork()
            if child == 0:
                return job
            print(json.dumps(_wait(child, time.monotonic() + job["timeout"])), file=replies, flush=True)
    return None


def _wait(child: int, deadline: float) -> int | None:
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _become(job: dict[str, Any]) -> None:
    """Makes this process the one of the job's snippet, up to where that begins."""
    for name, descriptor, mode in ((os.devnull, 0, "r"), (job["out"], 1, "w"), (job["err"], 2, "w")):
        with open(name, mode) as file:
            os.dup2(file.fileno(), descriptor)
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["folder"])
    sys.argv, sys.path[0] = ["-c"], ""
    sys.modules["__main__"] = types.ModuleType("__main__")
    if os.environ.get(AUTOLOAD, "1") == "1":
        import torch

        torch._import_device_backends()


if __name__ == "__main__":
    found = _serve()
    if found is not None:
        _become(found)
        exec(compile(found["code"], "<string>", "exec"), sys.modules["__main__"].__dict__)
