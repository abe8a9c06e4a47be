"""Programs that live in another process: of another commit, or of another environment. `served.py` is the other end."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from . import modes

ROOT = Path(__file__).resolve().parent.parent
EXIT_LIMIT_S = 30.0  # a process that does not end for this long, after its input has, is ended


class RemoteError(RuntimeError):
    """What failed in the other process, or how it ended, in one line."""


class Server:
    """A process that runs programs, until `close`.

    Args:
        interpreter: the Python that runs it.
        tree: the checkout whose `benchmarks` it runs and whose packages it imports.
        environment: variables besides this process's own; None unsets one.

    Raises:
        OSError: there is no such interpreter.
    """

    def __init__(
        self,
        interpreter: str | Path = sys.executable,
        tree: Path = ROOT,
        environment: Mapping[str, str | None] | None = None,
    ):
        paths = [str(tree), *filter(None, [os.environ.get("PYTHONPATH")])]  # ahead of what is installed
        variables = {**os.environ, **(environment or {}), "PYTHONPATH": os.pathsep.join(paths)}
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  (it is there until `close`)
        try:
            self._process = subprocess.Popen(
                [str(interpreter), "-m", "benchmarks.served"],
                cwd=tree,
                env={name: value for name, value in variables.items() if value is not None},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
            )
        except OSError:
            self._log.close()
            raise

    def ask(self, do: str, **arguments: Any) -> Any:
        """Has it do something, and waits for the answer.

        Raises:
            RemoteError: it raised an exception, or the process has ended.
        """
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        line = ""
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        if not line:
            code = process.wait(EXIT_LIMIT_S)
            raise RemoteError(f"its process ended with exit code {code}: {self._last_line()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RemoteError(answer["error"])
        return answer["answer"]

    def _last_line(self) -> str:
        """The last line that it printed."""
        self._log.seek(0)
        return next((line.strip() for line in reversed(self._log.readlines()) if line.strip()), "it printed nothing")

    def close(self) -> None:
        """Ends the process; idempotent."""
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(EXIT_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Program(modes.Program):
    """A program in another process, for a row: rounds are timed by the other process's clock.

    Args:
        server: where it lives.
        request: the fields of a `worker.Request`.
        times: every round is made to last so many times as long, which plants a slowdown.
        least_s: if not 0, a round is the mean of so many seconds' in a row, after one that is not timed.

    Raises:
        RemoteError: it could not be made there.
    """

    def __init__(
        self,
        server: Server,
        request: Mapping[str, Any],
        test: str,
        mode: str,
        times: float = 1.0,
        least_s: float = 0.0,
    ):
        self.mode = modes.MODES[mode]
        self.rest_s = modes.SPIN_S
        self._server = server
        self._name = f"{test} {mode}"
        self._times = times
        self._least_s = least_s
        self._ask("make", request=dict(request), test=test, mode=mode)

    @classmethod
    def alone(cls, interpreter: str, request: Mapping[str, Any], test: str, mode: str) -> Program:
        """One that has its process to itself, until it is gone."""
        server = Server(interpreter)
        program = cls(server, request, test, mode)
        weakref.finalize(program, server.close)
        return program

    def _ask(self, do: str, **arguments: Any) -> Any:
        return self._server.ask(do, name=self._name, **arguments)

    def run(self) -> None:
        self.round()

    def rehearse(self) -> None:
        if not self._least_s:
            self.round()

    def round(self) -> Sequence[float]:
        answer = self._ask("run", times=self._times, least_s=self._least_s)
        self.taken_s = answer["seconds"]
        return answer["host_s"]

    def clear(self) -> None:
        self._ask("clear")

    def first_step_again(self) -> None:
        self._ask("first_step_again")

    def results(self) -> dict[str, torch.Tensor]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "results.pt"
            self._ask("results", path=str(path))
            return torch.load(path)
