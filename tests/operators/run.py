"""Rows on worker processes: a crash or a row that takes too long costs that row and a new worker."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from tests import garbage

from .rows import Row

Outcome = dict[str, Any]
#: (its end of the pipe, samples): says "ready", then answers each row with its outcome until the pipe is closed
Serve = Callable[[Connection, int | None], None]

#: Of each row, by road: where each sample is compiled by itself it takes the longer.
SAMPLES = {"lazy": 8, "eager": 4, "compile": 4, "host": 4, "function": 8}

#: Seconds for a worker to import everything.
START_TIMEOUT = 300.0

#: Compiled programs and Dynamo's caches pile up; a worker that has grown to this is replaced.
WORKER_MEMORY = 5 << 30

#: Each kernel of a compiled program is a mapping or two, of which Linux gives a process 65,530 (`vm.max_map_count`);
#: XLA does not survive it if there are no more. To count them takes a while, so that is done after so many rows.
WORKER_MAPPINGS = 40_000
ROWS_BETWEEN_COUNTS = 25


def run(
    rows: Sequence[Row],
    report: Callable[[Outcome], None],
    *,
    samples: int | None = None,
    workers: int = 2,
    timeout: float = 120.0,
    serve: Serve | None = None,
) -> None:
    """Judges every row and reports the outcomes as they come.

    Args:
        samples: how many of each row, 0 for all; by default what `SAMPLES` has for its road.
        timeout: seconds for one row.
        serve: what a worker does; judges rows by default.
    """
    serve = serve or _serve
    queue = list(reversed(rows))
    pool = [_Worker(serve, samples) for _ in range(min(workers, len(rows)))]
    try:
        while queue or any(worker.row for worker in pool):
            for number, worker in enumerate(pool):
                if worker.row is None and queue:
                    if worker.is_spent():
                        worker.stop()
                        worker = pool[number] = _Worker(serve, samples)
                    worker.give(queue.pop())
            busy = [worker for worker in pool if worker.row is not None]
            wait([worker.connection for worker in busy], timeout=1.0)
            for worker in busy:
                outcome = worker.poll(timeout)
                if outcome is None:
                    continue
                if worker.ready:
                    report(outcome)
                if not worker.process.is_alive():
                    if not worker.ready:
                        raise RuntimeError("a worker could not start: its error is above")
                    worker.stop()
                    pool[pool.index(worker)] = _Worker(serve, samples)
    finally:
        for worker in pool:
            worker.stop()


class _Worker:
    """A process that judges one row at a time."""

    def __init__(self, serve: Serve, samples: int | None):
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, samples), daemon=True)
        self.process.start()
        theirs.close()
        self.row: Row | None = None
        self.ready = False
        self._rows = 0
        self._started = 0.0

    def give(self, row: Row) -> None:
        self.row = row
        self._rows += 1
        self._started = time.monotonic()
        self.connection.send(row)

    def poll(self, timeout: float) -> Outcome | None:
        """The outcome of the row if there is one by now."""
        try:
            if self.connection.poll():
                message = self.connection.recv()
                if message == "ready":  # what the import takes is not the row's
                    self._started = time.monotonic()
                    self.ready = True
                    return None
                self.row = None
                return message
        except (EOFError, OSError):
            self.process.join()
            return self._lost(_death(self.process.exitcode))
        if time.monotonic() - self._started > (timeout if self.ready else START_TIMEOUT):
            self.process.kill()
            self.process.join()
            return self._lost(f"takes more than {timeout:.0f} s")
        return None

    def is_spent(self) -> bool:
        if _memory(self.process.pid) > WORKER_MEMORY:
            return True
        return self._rows % ROWS_BETWEEN_COUNTS == 0 and _mappings(self.process.pid) > WORKER_MAPPINGS

    def stop(self) -> None:
        self.connection.close()  # which ends a worker that waits for a row
        if self.row is not None:
            self.process.kill()
        self.process.join(5.0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def _lost(self, error: str) -> Outcome:
        row, self.row = self.row, None
        assert row is not None
        return {**row.__dict__, "outcome": "fail", "samples": 0, "failed": 0, "error": error}


def _death(status: int | None) -> str:
    if status is not None and status < 0:
        return f"the process died of {signal.Signals(-status).name}"
    return f"the process ended with status {status}"


def _memory(pid: int | None) -> int:
    """Bytes of memory that a process holds; 0 where the system does not say."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _mappings(pid: int | None) -> int:
    """How many pieces the memory of a process consists of; 0 where the system does not say."""
    try:
        with open(f"/proc/{pid}/maps") as file:
            return sum(1 for _ in file)
    except OSError:
        return 0


def _serve(connection: Connection, samples: int | None) -> None:
    from . import judge

    judge.prepare_process()
    garbage.freeze()
    garbage.collect_less()
    connection.send("ready")
    while True:
        try:
            row = connection.recv()
        except EOFError:
            return
        connection.send(judge.judge(row, SAMPLES[row.road] if samples is None else samples))
