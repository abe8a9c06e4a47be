import pytest

from benchmarks.regression import against, gate
from benchmarks.remote import ROOT, RemoteError
from benchmarks.worker import Request


@pytest.mark.parametrize("swapped", [False, True])
def test_one_commit_against_itself(swapped):
    request = Request("squeezenet1_1", ("inference",), ("openxla",), batch_size=1, image_size=32, rounds=6, budget_s=60)
    told = []
    before, after = against.measure_both(
        [request], ROOT, swapped=swapped, tell=told.append, done=lambda: told.append("done")
    )
    assert told == ["squeezenet1_1 inference", "done"]
    for side in (before, after):
        assert [(row["mode"], row["failure"], len(row.get("times_ms", []))) for row in side] == [
            ("eager", None, 0),
            ("openxla", None, 6),
        ]
        assert side[1]["checks"][0]["what"] == "float32 outputs"
    assert [each.key.model for each in gate.judge_turns([(before, after)])] == ["squeezenet1_1"]


class Elsewhere:
    def ask(self, do):
        return {"package": "/", "threads": 1}


def test_a_process_with_another_package_is_refused():
    with pytest.raises(RemoteError, match="the process imports another lazy_runtime than its checkout's"):
        against._check(Elsewhere(), ROOT)  # pyright: ignore[reportArgumentType]
