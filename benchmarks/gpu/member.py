"""The process of one model, as `benchmarks.worker` has it, in a group of processes that can be ended as a whole."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from .. import worker
from .child import end_group
from .precision import DeviceRequest, registered

Record = dict[str, Any]
Target = Callable[[DeviceRequest, Connection, str, float], None]

PREPARING, READY, OVER = "preparing", "ready", "over"

#: How much of what a failed process has printed is kept.
LOG_CHARACTERS = 4000


def main(request: DeviceRequest, connection: Connection, log: str, timing_s: float) -> None:
    """Entry point of the process.

    Args:
        timing_s: for the rounds of all modes together.
    """
    os.setsid()
    worker.TOGETHER_TIMING_S = worker.MIN_TIMING_S = timing_s
    with registered():
        worker.main(request, connection, log)


class Member:
    """One model of a wave: its process, and what is known of it.

    Args:
        log: file that takes what the process prints.
        timing_s: for the rounds of all modes together.
        target: the entry point of the process.
    """

    def __init__(self, request: DeviceRequest, log: Path, timing_s: float, target: Target = main):
        self.request = request
        self.state = PREPARING
        self.began = self.progressed = time.monotonic()
        self.step = "start of the process"
        self.failure: str | None = None
        self.is_slow = False
        self._log = log
        self._missing = {(test, mode) for test in request.tests for mode in request.modes_of(test)}
        context = multiprocessing.get_context("spawn")  # fork does not go with the threads of torch and XLA
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=target, args=(request, theirs, str(log), timing_s))
        self._process.start()
        theirs.close()  # the process's copy is now the only one: its end is the end of the pipe

    def receive(self) -> list[Record]:
        """Takes one event, which has arrived. Returns the row that it brings, if it does; the end is an event too."""
        try:
            kind, content = self.connection.recv()
        except (EOFError, OSError):
            self.end("its process died")
            return []
        self.progressed = time.monotonic()
        if kind == "ready":
            self.state = READY
        elif kind == "row":
            self._missing.discard((content["test"], content["mode"]))
            return [content]
        elif kind == "died":
            self.end(content)
        else:
            self.step = content
        return []

    def begin_timing(self) -> None:
        """Lets the process go on, which has the device for itself now."""
        self.progressed = time.monotonic()
        with contextlib.suppress(OSError):  # that it has died is the next event
            self.connection.send("go")

    def end(self, why: str, is_slow: bool = False) -> None:
        """Ends the process. What it owes has failed for this reason.

        Args:
            is_slow: it had too little time, which it would have again.
        """
        if self.state == OVER:
            return
        self.state = OVER
        self.is_slow = is_slow
        self.failure = why if self._missing else None
        self.connection.close()
        if not self._missing:
            self._process.join(2.0)  # it has sent all and ends by itself
        if self._process.pid is not None:
            end_group(self._process.pid)
        self._process.kill()
        self._process.join()

    def owed(self) -> list[Record]:
        """The rows that did not come, as failures."""
        reason = f"{self.failure}, at: {self.step}"
        return [self.request.failed_row(test, mode, reason) for test, mode in sorted(self._missing)]

    @property
    def culprit(self) -> str | None:
        """The mode that the process was at when it failed."""
        last = self.step.split()[-1]
        return last if self.failure is not None and last in self.request.modes else None

    def printed(self) -> str:
        """The end of what the process has printed."""
        with contextlib.suppress(OSError):
            return self._log.read_text(errors="replace")[-LOG_CHARACTERS:]
        return ""
