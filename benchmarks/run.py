"""Runs models one after the other, each in a process of its own, and collects their rows."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import multiprocessing
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from . import environment, report, worker
from .worker import Request

STEP_LIMIT_S = 600.0  # a process that reports no step for this long hangs
EXIT_LIMIT_S = 60.0  # a process that has sent everything and does not end for this long is ended

Record = dict[str, Any]


def run(requests: Sequence[Request], output: Path | None = None, more: Mapping[str, Any] | None = None) -> list[Record]:
    """Runs all requests and returns the records of a result file, the environment's first.

    Seconds that a model leaves of its budget go to those after it, so that the whole keeps to the sum. Those that go
    together are prepared at once, each in its process, and then timed one by one, when the last is ready: where there
    are cores for all of them, and a GPU does the work that is timed.

    Args:
        output: written line by line as rows are finished.
        more: goes into the environment's record.
    """
    records: list[Record] = []
    around = {
        "record": "environment",
        **environment.collect(),
        **(more or {}),
    }  # before a new file changes the checkout
    file = None
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        file = output.open("w")

    def keep(record: Record) -> None:
        records.append(record)
        if file is not None:
            file.write(json.dumps(record) + "\n")
            file.flush()

    deadline = time.monotonic() + sum(request.budget_s for request in requests)
    try:
        keep(around)
        with tqdm(
            total=sum(request.steps for request in requests), unit="step", dynamic_ncols=True, disable=None
        ) as bar:
            for tests in dict.fromkeys(tuple(request.tests) for request in requests if request.together):
                group = [request for request in requests if request.together and tuple(request.tests) == tests]
                for row in _run_together(group, bar):
                    keep({"record": "row", **row})
                    bar.write(report.row_line(row))
            for number, request in enumerate(requests):
                if request.together:
                    continue
                budget_s = max(0.0, deadline - time.monotonic()) / (len(requests) - number)
                steps_before = bar.n
                for row in _run_model(request._replace(budget_s=budget_s), bar):
                    keep({"record": "row", **row})
                    bar.write(report.row_line(row))
                bar.update(steps_before + request.steps - bar.n)  # steps that failures left out
    finally:
        if file is not None:
            file.close()
    return records


def _parsed(line: str) -> Record | None:
    """The record of a line; None if it is none."""
    try:
        record = json.loads(line)
        return record if record["record"] in ("environment", "row") else None
    except (ValueError, TypeError, KeyError):
        return None


def read(path: Path) -> list[Record]:
    """The records of a result file.

    Raises:
        ValueError: the file is no result file.
    """
    records = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        record = _parsed(line)
        if record is None:
            raise ValueError(f"{path.name}, line {number}: not a result of `python -m benchmarks run`")
        records.append(record)
    return records


class Turns:
    """Who is timed: nobody until all are ready, then one after the other."""

    def __init__(self, preparing: int):
        self._preparing = preparing
        self._changed = threading.Condition()
        self._timing = threading.Lock()

    @contextlib.contextmanager
    def of_one(self) -> Iterator[Callable[[], None]]:
        """For one of them, while it runs: what waits for its turn, which ends with the context. One that never asks
        keeps nobody waiting once it is over.
        """
        turn, ready = contextlib.ExitStack(), False

        def wait() -> None:
            nonlocal ready
            turn.close()  # that of a test before
            with self._changed:
                self._preparing -= not ready
                ready = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._preparing == 0)
            turn.enter_context(self._timing)

        with turn:
            try:
                yield wait
            finally:
                with self._changed:
                    self._preparing -= not ready
                    self._changed.notify_all()


def _run_together(requests: Sequence[Request], bar: tqdm) -> Iterator[Record]:
    """Yields the rows of models as they are done."""
    turns = Turns(len(requests))
    with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
        running = [pool.submit(lambda each: list(_run_model(each, bar, turns)), request) for request in requests]
        for each in concurrent.futures.as_completed(running):
            yield from each.result()


def _run_model(request: Request, bar: tqdm, turns: Turns | None = None) -> Iterator[Record]:
    """Yields the rows of one model; what its process did not report, because it died, are failures."""
    missing = {(test, mode) for test in request.tests for mode in request.modes_of(test)}
    failed = False
    with tempfile.TemporaryDirectory() as folder, (turns or Turns(1)).of_one() as wait:
        log = Path(folder) / "log"
        reason = "its process ended early"
        for kind, content in _events(worker.main, request, str(log), wait):
            if kind == "step":
                bar.set_postfix_str(content)
                bar.update()
            elif kind == "alive":
                bar.set_postfix_str(content)
            elif kind == "row":
                missing.discard((content["test"], content["mode"]))
                failed = failed or content["failure"] is not None
                yield content
            else:
                reason = content
        for test in request.tests:
            for mode in request.modes_of(test):
                if (test, mode) in missing:
                    yield request.failed_row(test, mode, reason)
        if (failed or missing) and log.exists():
            text = log.read_text(errors="replace")
            bar.write(f"--- what {request.model} printed, the last lines:\n{text[-4000:]}", file=sys.stderr)


def _events(
    target: Callable[..., None], request: Request, log: str, wait: Callable[[], None] = lambda: None
) -> Iterator[tuple[str, Any]]:
    """What a worker sends; then, if it did not end by itself in good order, `("died", why)`.

    Args:
        wait: returns when the worker, which has said that it is ready, may go on.
    """
    context = multiprocessing.get_context("spawn")  # fork does not go with the threads of torch and XLA
    receiver, sender = context.Pipe()
    process = context.Process(target=target, args=(request, sender, log))
    process.start()
    sender.close()  # the worker's copy is now the only one: its end is the end of the pipe
    reason = ""
    try:
        while receiver.poll(STEP_LIMIT_S):
            event = receiver.recv()
            if event[0] == "ready":
                wait()
                receiver.send("go")
            else:
                yield event
        reason = f"no progress in {STEP_LIMIT_S:.0f} s"
        process.kill()
    except (EOFError, ConnectionError):  # a pipe that goes both ways breaks where the other end dies with unread text
        pass
    except BaseException:  # an interrupt, or nobody wants the rest
        process.kill()
        raise
    finally:
        receiver.close()
        process.join(EXIT_LIMIT_S)
        process.kill()
        process.join()
    if process.exitcode and not reason:
        code = process.exitcode
        reason = f"its process died of {signal.Signals(-code).name if code < 0 else f'an error (exit code {code})'}"
    if reason:
        yield "died", reason
