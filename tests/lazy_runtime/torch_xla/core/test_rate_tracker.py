"""`xm.RateTracker`, with a clock of its own."""

from __future__ import annotations

import pytest

from lazy_runtime.torch_xla.core import rate_tracker


class Clock:
    now = 100.0

    def time(self) -> float:
        return self.now


def test_rates(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(rate_tracker, "time", clock)
    tracker = rate_tracker.RateTracker(smooth_factor=0.25)
    assert tracker.rate() == 0
    tracker.add(10)
    clock.now += 2
    assert tracker.rate() == 5
    tracker.add(18)
    clock.now += 2
    assert tracker.rate() == pytest.approx(0.75 * 9 + 0.25 * 5)
    assert tracker.global_rate() == 7


def test_smoothing_from_the_environment(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(rate_tracker, "time", clock)
    monkeypatch.setenv("RATE_TRACKER_SMOOTHING", "0")
    tracker = rate_tracker.RateTracker()
    for count in (10, 20):
        tracker.add(count)
        clock.now += 1
        assert tracker.rate() == count
