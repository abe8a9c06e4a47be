import time

import pytest

from benchmarks import measure


class Recorder:
    """Something to time that writes down when it ran."""

    rest_s = 0.0

    def __init__(self, name, log):
        self.name = name
        self.log = log

    def run(self):
        self.log.append(self.name)

    def clear(self):
        self.log.append(f"clear {self.name}")

    def rehearse(self):
        self.log.append(f"rehearse {self.name}")


@pytest.fixture(autouse=True)
def _one_run_in_a_turn(monkeypatch):
    monkeypatch.setattr(measure, "MOST_RUNS", 1)


def _interleave(rounds, deadline, clock=lambda: 0.0, **options):
    log = []
    times = measure.interleave({name: Recorder(name, log) for name in "ab"}, rounds, deadline, clock, **options)
    return log, {name: len(series) for name, series in times.items()}


def test_rounds_are_interleaved_after_one_that_is_not_kept():
    log, counts = _interleave(rounds=4, deadline=1.0)
    assert log[:4] == ["clear a", "a", "clear b", "b"]
    assert log[4:] == ["clear a", "rehearse a", "clear a", "a", "clear b", "rehearse b", "clear b", "b"] * 4
    assert counts == {"a": 4, "b": 4}


def test_all_rounds_are_kept_where_none_is_to_come_first():
    log, counts = _interleave(rounds=3, deadline=1.0, unkept=0)
    assert [line for line in log if line in "ab"] == ["a", "b"] * 3
    assert counts == {"a": 3, "b": 3}


def test_long_runs_are_not_rehearsed():
    log, _ = _interleave(rounds=3, deadline=1.0, brief_s=0.0)
    assert log == ["clear a", "a", "clear b", "b"] * 4


def test_a_turn_of_brief_runs_is_their_mean(monkeypatch):
    monkeypatch.setattr(measure, "MOST_RUNS", 3)
    seconds = iter(range(100))
    monkeypatch.setattr(Recorder, "run", lambda self: self.log.append(self.name) or float(next(seconds)))
    log = []
    times = measure.interleave({"a": Recorder("a", log)}, 3, -1.0, unkept=0)
    assert log[:6] == ["clear a", "a"] * 3
    assert times == {"a": [1.0, 4.0, 7.0]}


def test_a_turn_of_one_run_where_a_run_is_a_turn_of_its_own(monkeypatch):
    monkeypatch.setattr(measure, "MOST_RUNS", 30)
    log, _ = _interleave(rounds=3, deadline=1.0, unkept=0, most_runs=1)
    assert [line for line in log if line in "ab"] == ["a", "b"] * 3


def test_a_turn_ends_when_it_has_taken_long_enough(monkeypatch):
    monkeypatch.setattr(measure, "MOST_RUNS", 1000)
    log = []
    monkeypatch.setattr(Recorder, "run", lambda self: self.log.append(time.sleep(0.02)))
    measure.interleave({"a": Recorder("a", log)}, 3, -1.0, unkept=0, brief_s=0.05)
    assert 3 <= log.count(None) <= 9


def test_somebody_is_told_ahead_of_each_run():
    told = []
    _interleave(rounds=3, deadline=1.0, unkept=0, before=told.append)
    assert told == ["a", "b"] * 3


def test_a_clock_elsewhere_has_the_say(monkeypatch):
    monkeypatch.setattr(Recorder, "run", lambda self: 0.5)
    assert measure.interleave({"a": Recorder("a", [])}, 3, -1.0) == {"a": [0.5] * 3}


@pytest.mark.parametrize("rounds", [1, 20])
def test_at_least_three_rounds_after_the_deadline(rounds):
    _, counts = _interleave(rounds, deadline=-1.0)
    assert counts == {"a": 3, "b": 3}


def test_no_round_starts_after_the_deadline():
    ticks = iter(range(100))
    _, counts = _interleave(rounds=20, deadline=4.0, clock=lambda: next(ticks))
    assert counts == {"a": 7, "b": 7}  # three without a look at the clock, four before it says 4


def test_summary_has_the_quartiles():
    summary = measure.summarize([4.0, 1.0, 3.0, 2.0, 5.0])
    assert summary == (3.0, 2.0, 4.0, 1.0)
    assert summary.spread == 2.0
    assert measure.summarize([7.0]) == (7.0, 7.0, 7.0, 7.0)
