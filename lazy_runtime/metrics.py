"""Counters, under PyTorch/XLA's names."""

from __future__ import annotations

import threading
from collections import Counter

counters: Counter[str] = Counter()  # a race between threads may lose a count of `counters[name] += 1`, no more
_lock = threading.Lock()


def count(name: str, by: int = 1) -> None:
    """Adds `by` to the counter `name`."""
    with _lock:
        counters[name] += by


def value(name: str) -> int:
    """The counter's value; 0 if nothing was counted."""
    return counters.get(name, 0)


def names() -> list[str]:
    """Names of all counters that were touched, sorted."""
    return sorted(counters)


def clear() -> None:
    """Forgets every counter."""
    with _lock:
        counters.clear()
