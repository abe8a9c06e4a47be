"""How fast a loop runs."""

from __future__ import annotations

import time

from ..utils.utils import getenv_as


class RateTracker:
    """Counts samples and says how many there are per second.

    Args:
        smooth_factor: share of the rate before in the rate that is reported; `RATE_TRACKER_SMOOTHING` or 0.4 if None.
    """

    def __init__(self, smooth_factor: float | None = None):
        if smooth_factor is None:
            smooth_factor = getenv_as("RATE_TRACKER_SMOOTHING", float, 0.4)
        assert smooth_factor is not None
        self._smooth_factor = smooth_factor
        self._start = self._last = time.time()
        self._before = 0.0  # samples up to the last report
        self._count = 0.0  # samples since
        self._rate: float | None = None

    def add(self, count: float) -> None:
        """Counts `count` more samples."""
        self._count += count

    def rate(self) -> float:
        """Samples per second since the last call, smoothed with the rates before."""
        now = time.time()
        elapsed = now - self._last
        if elapsed <= 0:
            return 0.0
        rate = self._count / elapsed
        if self._rate is not None:
            rate = (1 - self._smooth_factor) * rate + self._smooth_factor * self._rate
        self._before += self._count
        self._count = 0.0
        self._last, self._rate = now, rate
        return rate

    def global_rate(self) -> float:
        """Samples per second since the tracker was made."""
        elapsed = time.time() - self._start
        return (self._before + self._count) / elapsed if elapsed > 0 else 0.0
