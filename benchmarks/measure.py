"""Interleaved timing: every call once per round, so that noise falls on all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

MIN_ROUNDS = 3

# After a parallel region OpenMP's threads spin for about a millisecond before they sleep: without a pause, the next
# call would share its cores with them.
PAUSE_S = 0.005


class Timed(Protocol):
    """What can be timed: `run` is, `clear` is not. Where it runs in another process, `run` returns the seconds by the
    clock there."""

    def run(self) -> float | None: ...
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
) -> dict[str, list[float]]:
    """Seconds of each run: A B C, A B C, ...

    Args:
        rounds: the most that are made.
        deadline: no round is started after it (by `clock`), but at least `MIN_ROUNDS` are made.
        unkept: rounds that come first and are not kept.
        before: told the name ahead of each run.
    """
    kept: dict[str, list[float]] = {name: [] for name in timed}
    for number in range(-unkept, max(rounds, MIN_ROUNDS)):
        if number >= MIN_ROUNDS and clock() >= deadline:
            break
        for name, each in timed.items():
            before(name)
            each.clear()
            time.sleep(PAUSE_S)
            start = time.perf_counter()
            own = each.run()
            taken = time.perf_counter() - start
            if number >= 0:
                kept[name].append(taken if own is None else own)
    return kept


def summarize(series: Sequence[float]) -> Summary:
    """Summarizes a series; quartiles by linear interpolation between the values."""
    if len(series) == 1:
        return Summary(series[0], series[0], series[0], series[0])
    lower, median, upper = statistics.quantiles(series, n=4, method="inclusive")
    return Summary(median, lower, upper, min(series))
