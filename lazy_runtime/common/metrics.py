"""What the runtime counts and measures, under PyTorch/XLA's names. `debug.metrics` is the face of it.

A counter is a number; a metric keeps its latest samples, for percentiles, and the number and sum of all. Times are in
nanoseconds.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from enum import Enum
from types import TracebackType

from . import forking

counters: Counter[str] = Counter()  # a race between threads may lose a count of `counters[name] += 1`, no more
_lock = threading.Lock()

#: How many samples a metric keeps (PyTorch/XLA's number).
MAX_SAMPLES = 1024


class Unit(Enum):
    """What the samples of a metric are."""

    TIME = "time"  # nanoseconds
    BYTES = "bytes"
    VALUE = "value"


class Metric:
    """The samples of one quantity.

    Attributes:
        total: how many samples there were.
        accumulator: their sum.
        samples: the latest `MAX_SAMPLES` of them, oldest first: (seconds since the epoch, value).
    """

    __slots__ = ("accumulator", "samples", "total", "unit")

    def __init__(self, unit: Unit):
        self.unit = unit
        self.total = 0
        self.accumulator = 0.0
        self.samples: deque[tuple[float, float]] = deque(maxlen=MAX_SAMPLES)


_metrics: dict[str, Metric] = {}

#: Called before anything is read, for what is only counted on demand.
before_reading: list[Callable[[], None]] = []
#: Called when counters, metrics, or both are cleared.
after_clearing: list[Callable[[], None]] = []


def count(name: str, by: int = 1) -> None:
    """Adds `by` to the counter `name`."""
    with _lock:
        counters[name] += by


def record(name: str, value: float, unit: Unit = Unit.TIME, when: float | None = None) -> None:
    """Adds a sample to the metric `name`, which the first one creates.

    Args:
        when: seconds since the epoch; now by default.
    """
    sample = time.time() if when is None else when, value
    with _lock:
        metric = _metrics.get(name)
        if metric is None:
            metric = _metrics[name] = Metric(unit)
        metric.samples.append(sample)
        metric.total += 1
        metric.accumulator += value


class timed:
    """Within the block, time is measured for the metric `name`."""

    __slots__ = ("_began", "_name")

    def __init__(self, name: str):
        self._name = name

    def __enter__(self) -> None:
        self._began = time.perf_counter_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        record(self._name, time.perf_counter_ns() - self._began)


def value(name: str) -> int:
    """The counter's value; 0 if nothing was counted."""
    return counters.get(name, 0)


def names() -> list[str]:
    """Names of all counters that were touched, sorted."""
    return sorted(counters)


def snapshot() -> tuple[dict[str, int], dict[str, Metric]]:
    """Every counter that is not 0, and a copy of every metric, both sorted by name."""
    for function in before_reading:
        function()
    with _lock:
        counted = {name: counters[name] for name in sorted(counters) if counters[name]}
        measured = {}
        for name in sorted(_metrics):
            metric, copy = _metrics[name], Metric(_metrics[name].unit)
            copy.total, copy.accumulator = metric.total, metric.accumulator
            copy.samples.extend(metric.samples)
            measured[name] = copy
    return counted, measured


def clear() -> None:
    """Forgets every counter and every metric."""
    clear_metrics()
    clear_counters()


def clear_counters() -> None:
    """Forgets every counter."""
    with _lock:
        counters.clear()
    for function in after_clearing:
        function()


def clear_metrics() -> None:
    """Forgets every metric."""
    with _lock:
        _metrics.clear()


def _new_lock() -> None:
    global _lock
    _lock = threading.Lock()


forking.in_child.append(_new_lock)  # another thread of the parent may have held it
