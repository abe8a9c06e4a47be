"""Models that are prepared in parallel, in a process each, and timed one after the other, alone on the device."""

from __future__ import annotations

import multiprocessing.connection
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from . import member
from .member import OVER, PREPARING, READY, Member, Record
from .precision import DeviceRequest


class Limits(NamedTuple):
    """Seconds.

    Attributes:
        prepare_s: until all are ready; those that are not then are given up.
        step_s: without progress.
        timing_s: for the rounds of a model's modes together.
        timed_s: for a model, its last comparisons included.
        total_s: of the whole wave.
    """

    prepare_s: float
    step_s: float
    timing_s: float
    timed_s: float
    total_s: float


class Outcome(NamedTuple):
    """What a wave took.

    Attributes:
        prepared_s: until all were ready or given up.
        timed_s: of those that were timed.
        timed: their number.
        again: what a process that died or hung has left, without the mode that it was at.
    """

    prepared_s: float
    timed_s: float
    timed: int
    again: Sequence[DeviceRequest]


def run(
    requests: Sequence[DeviceRequest],
    limits: Limits,
    keep: Callable[[Record], object],
    log: Callable[[str, str], object],
    target: member.Target = member.main,
) -> Outcome:
    """Runs models, whose rows are kept as they come. One that fails or hangs costs its own rows.

    Args:
        keep: takes a finished row.
        log: takes the name of a model that failed, and what its process has printed.
        target: the entry point of the processes.
    """
    began = time.monotonic()
    again: list[DeviceRequest] = []
    with tempfile.TemporaryDirectory() as folder:
        members: list[Member] = []

        def settle(each: Member) -> None:
            """Keeps what a member that is over owes, or has it tried again."""
            rest = _without_culprit(each)
            if rest is not None:
                again.append(rest)
            retried = set() if rest is None else set(rest.modes)
            for row in each.owed():
                if row["mode"] not in retried:
                    keep(row)
            if each.failure is not None:
                log(each.request.title, each.printed())

        try:
            for number, request in enumerate(requests):
                members.append(Member(request, Path(folder) / str(number), limits.timing_s, target))
            for row in _prepare(members, began + limits.prepare_s, limits.step_s):
                keep(row)
            prepared = time.monotonic()
            for each in members:
                if each.state == OVER:
                    settle(each)
            ready = [each for each in members if each.state == READY]
            for each in ready:
                for row in _time(each, limits, began + limits.total_s):
                    keep(row)
                settle(each)
        finally:
            for each in members:
                each.end("the program ended")
    return Outcome(prepared - began, time.monotonic() - prepared, len(ready), again)


def _prepare(members: Sequence[Member], deadline: float, step_s: float) -> Iterator[Record]:
    """Waits until all are ready or over; yields the rows of those that fail as a whole."""
    while preparing := [each for each in members if each.state == PREPARING]:
        next_limit = min(deadline, *(each.progressed + step_s for each in preparing))
        yield from _receive(preparing, next_limit)
        now = time.monotonic()
        for each in preparing:
            if each.state != PREPARING:
                continue
            if now >= deadline:
                each.end(f"not ready after {now - each.began:.0f} s", is_slow=True)
            elif now >= each.progressed + step_s:
                each.end(f"no progress in {step_s:.0f} s")


def _time(each: Member, limits: Limits, until: float) -> Iterator[Record]:
    """Lets one go on until it is over; yields its rows."""
    each.begin_timing()
    deadline = min(until, time.monotonic() + limits.timed_s)
    while each.state != OVER:
        next_limit = min(deadline, each.progressed + limits.step_s)
        yield from _receive([each], next_limit)
        now = time.monotonic()
        if each.state != OVER and now >= deadline:
            each.end(
                "no time was left for it" if now >= until else f"not timed in {limits.timed_s:.0f} s", is_slow=True
            )
        elif each.state != OVER and now >= each.progressed + limits.step_s:
            each.end(f"no progress in {limits.step_s:.0f} s")


def _receive(members: Iterable[Member], until: float) -> Iterator[Record]:
    """Takes an event of each member that has one, and waits so long for the first."""
    waiting = {each.connection: each for each in members}
    timeout = max(0.0, until - time.monotonic())
    for connection in multiprocessing.connection.wait(list(waiting), timeout):
        yield from next(each for known, each in waiting.items() if known is connection).receive()


def _without_culprit(each: Member) -> DeviceRequest | None:
    """What is tried again of a model whose process died or hung in one mode, if others are left."""
    if each.culprit is None or each.is_slow:
        return None
    modes = [mode for mode in each.request.modes if mode != each.culprit]
    rest = each.request._replace(modes=modes)
    return rest if any(rest.modes_of(test) for test in rest.tests) else None
