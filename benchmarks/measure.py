"""Interleaved timing: every call has its turn in each round, so that noise falls on all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

MIN_ROUNDS = 3

#: Shorter runs are preceded by one that is not timed. A thread of OpenMP's that has slept through the others' turns may
#: be woken on the processor of the thread that waits for it (`lazy_runtime/native/move_apart.h`): a call of a small
#: model took two to four times as long, eager's too. That is a loss of up to 15 ms, which long runs do not notice.
#: And a turn of theirs is as many runs as take so long together: users call such a model again and again, and the first
#: calls after a rest are slower than those that follow, most of all where a thread hands over to others.
BRIEF_S = 0.25

#: Runs in one turn.
MOST_RUNS = 30

#: As `BRIEF_S`, where the CPU's threads do not compute: nothing has to be woken.
BRIEF_ON_GPU_S = 0.05


class Timed(Protocol):
    """What can be timed: `run` is, `rehearse`, which does the same, and `clear` are not. Where it runs in another
    process, `run` returns the seconds by the clock there. `rest_s` is how long its threads are still about after it.
    """

    @property
    def rest_s(self) -> float: ...
    def run(self) -> float | None: ...
    def rehearse(self) -> None: ...
    def clear(self) -> None: ...


class Summary(NamedTuple):
    """Median, quartiles, and least of a series, in its unit."""

    median: float
    lower: float
    upper: float
    fastest: float

    @property
    def spread(self) -> float:
        """The interquartile range."""
        return self.upper - self.lower


def seconds(call: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def interleave(
    timed: Mapping[str, Timed],
    rounds: int,
    deadline: float,
    clock: Callable[[], float] = time.perf_counter,
    unkept: int = 1,
    before: Callable[[str], object] = lambda name: None,
    most_runs: int | None = None,
    brief_s: float = BRIEF_S,
) -> dict[str, list[float]]:
    """Seconds of a run in each round, of brief ones the mean over a turn: A B C, A B C, ...

    Args:
        rounds: the most that are made.
        deadline: no round is started after it (by `clock`), but at least `MIN_ROUNDS` are made.
        unkept: rounds that come first and are not kept.
        before: told the name ahead of each turn.
        most_runs: in one turn; `MOST_RUNS` if None.
        brief_s: what a turn of brief runs takes, and below which a run is brief.
    """
    kept: dict[str, list[float]] = {name: [] for name in timed}
    brief: set[str] = set()
    rest_s = 0.0
    for number in range(-unkept, max(rounds, MIN_ROUNDS)):
        if number >= MIN_ROUNDS and clock() >= deadline:
            break
        for name, each in timed.items():
            before(name)
            each.clear()
            time.sleep(rest_s)
            if name in brief:
                each.rehearse()
                each.clear()
            taken = _turn(each, 1 if number < 0 else most_runs or MOST_RUNS, brief_s)
            if taken[0] < brief_s:
                brief.add(name)
            rest_s = each.rest_s
            if number >= 0:
                kept[name].append(statistics.fmean(taken))
    return kept


def _turn(each: Timed, most: int, brief_s: float) -> list[float]:
    """Seconds of its runs until these have taken `brief_s` together, or there have been so many."""
    taken: list[float] = []
    passed = 0.0
    while not taken or (passed < brief_s and len(taken) < most):
        if taken:
            each.clear()
        start = time.perf_counter()
        own = each.run()
        here = time.perf_counter() - start
        taken.append(here if own is None else own)
        passed += here
    return taken


def summarize(series: Sequence[float]) -> Summary:
    """Summarizes a series; quartiles by linear interpolation between the values."""
    if len(series) == 1:
        return Summary(series[0], series[0], series[0], series[0])
    lower, median, upper = statistics.quantiles(series, n=4, method="inclusive")
    return Summary(median, lower, upper, min(series))
