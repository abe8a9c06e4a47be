"""The runtime's counters by public names, which earlier commits have too: the gate measures both with this code."""

from __future__ import annotations

from lazy_runtime.debug import metrics


def value(name: str) -> int:
    """How often it was counted, 0 if never."""
    return metrics.counter_value(name) or 0
