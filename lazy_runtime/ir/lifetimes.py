"""How many tensors and device buffers came and went, counted where it costs least.

A handle is made and dies with every operator, so neither may cost a Python call: births step a counter written in C,
and so do deaths, through the callback of the weak reference that a handle has anyway. The counters `CreateXlaTensor`,
`DestroyXlaTensor`, `CreateDataHandles` and `DestroyDataHandles` are made of these when somebody looks.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

from ..common import metrics

_births = itertools.count()
_deaths = itertools.count()
_looks = 0  # steps of either counter that were only looks at it
_buffers = 0  # device buffers that tensors were bound to
_reported = (0, 0, 0, 0)  # born, died, and buffers made and destroyed, when counters were last updated or cleared

#: Called for each handle that is made.
born = _births.__next__
#: The callback of each handle's weak reference, which is `next`'s default and so is ignored.
died = functools.partial(next, _deaths)


def _none_pending() -> int:
    return 0


#: How many live handles stand for results of pending nodes; the devices know.
count_pending: Callable[[], int] = _none_pending


def bound(count: int) -> None:
    """Notes that `count` handles got device buffers."""
    global _buffers
    _buffers += count


def _totals() -> tuple[int, int, int, int]:
    global _looks
    died_so_far, made = next(_deaths) - _looks, next(_births) - _looks
    _looks += 1
    # handles alive either wait for a buffer, as outputs of pending nodes, or have one
    alive = made - died_so_far
    return made, died_so_far, _buffers, max(_buffers - max(alive - count_pending(), 0), 0)


def alive() -> int:
    """How many values are held by tensors now."""
    made, died, *_ = _totals()
    return made - died


_NAMES = ("CreateXlaTensor", "DestroyXlaTensor", "CreateDataHandles", "DestroyDataHandles")


def _update() -> None:
    global _reported
    now = _totals()
    for name, new, old in zip(_NAMES, now, _reported, strict=True):
        if new > old:
            metrics.count(name, new - old)
    _reported = now


def _restart() -> None:
    global _reported
    _reported = _totals()


metrics.before_reading.append(_update)
metrics.after_clearing.append(_restart)
