import numpy
import pytest

from benchmarks import against, gate
from benchmarks.remote import ROOT, RemoteError
from benchmarks.worker import Request
from tests.benchmarks import simulated


def test_one_commit_against_itself(monkeypatch):
    monkeypatch.setattr(against, "MOST_BUDGETS", 1)
    request = Request("squeezenet1_1", ("inference",), ("openxla",), batch_size=1, image_size=32, rounds=6, budget_s=60)
    told = []
    before, after = against.measure_both([request], ROOT, tell=told.append, done=lambda: told.append("done"))
    assert told == ["squeezenet1_1 inference", "done"]
    for side in (before, after):
        assert [(row["mode"], row["failure"], len(row["times_ms"])) for row in side] == [
            ("eager", None, 6),
            ("openxla", None, 6),
        ]
        assert side[1]["checks"][0]["what"] == "float32 outputs"
    assert [each.key.model for each in gate.judge(before, after, together=True)] == ["squeezenet1_1"]


class Elsewhere:
    def ask(self, do):
        return {"package": "/", "threads": 1}


def test_a_process_with_another_package_is_refused():
    with pytest.raises(RemoteError, match="the process imports another lazy_runtime than its checkout's"):
        against._check(Elsewhere(), ROOT)  # pyright: ignore[reportArgumentType]


def _times(rounds):
    generator = numpy.random.default_rng(0)
    walk = simulated.drift(generator, rounds)
    names = [f"{side} {mode}" for side in ("before", "after") for mode in ("eager", "openxla")]
    return {name: simulated.series(generator, 10.0, walk) for name in names}


def test_few_rounds_leave_it_open():
    assert against._vague(_times(3), ["openxla"])
    assert against._vague(_times(8), ["openxla"])
    assert not against._vague(_times(400), ["openxla"])
    assert not against._vague(_times(8), ["lazy"])  # failed: it has no times
