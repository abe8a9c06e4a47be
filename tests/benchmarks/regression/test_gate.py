"""The regression gate, on simulated results."""

import copy
import re

import pytest

from benchmarks.regression import gate
from benchmarks.regression.gate import Allowed, GateError
from tests.benchmarks import simulated

TRIALS = 20


def _fell(findings):
    return [each.key.model for each in findings if each.fell]


def _lines(text):
    return [re.sub(r"\s+", " ", line) for line in text.splitlines()]


def _sittings(seed, slower, times=1.15):
    """The findings as the command comes to them, and in how many sittings."""
    sittings, models = [], set(simulated.MODELS)
    while models:
        sittings.append(simulated.in_turns(100 * seed + len(sittings), slower, times=times, models=sorted(models)))
        found = gate.judge_turns(sittings)
        models = gate.in_doubt(found)
    return found, len(sittings)


def test_a_slowdown_of_15_percent_is_caught_in_20_of_20_trials():
    for seed in range(TRIALS):
        assert "geomean" in _fell(gate.judge(*simulated.two_runs(seed, simulated.MODELS)))
        assert "geomean" in _fell(_sittings(seed, simulated.MODELS)[0])


def test_a_slowdown_of_one_model_in_20_trials():
    """Processes differ by 4.5 %, which five sittings do not always make up for."""
    fell = [_fell(_sittings(seed, ["resnet18"])[0]) for seed in range(TRIALS)]
    assert sum("resnet18" in models for models in fell) >= 18
    assert not any({"squeezenet1_1", "mobilenet_v2"} & set(models) for models in fell)
    assert all("resnet18" in _fell(_sittings(seed, ["resnet18"], 1.2)[0]) for seed in range(TRIALS))


def test_the_same_code_passes_in_20_of_20_trials():
    assert [_fell(gate.judge(*simulated.two_runs(seed))) for seed in range(TRIALS)] == [[]] * TRIALS
    found = [_sittings(seed, []) for seed in range(TRIALS)]
    assert [_fell(findings) for findings, _ in found] == [[]] * TRIALS
    assert sum(count for _, count in found) < 2 * TRIALS


def test_what_is_allowed_is_by_model():
    before, after = simulated.two_runs(0, ["resnet18"])
    assert "resnet18" not in _fell(gate.judge(before, after, Allowed(models={"resnet18": 0.3})))
    assert "resnet18" in _fell(gate.judge(before, after, Allowed(0.01, models={"vgg16": 0.3})))


def test_what_looks_like_a_fall_is_measured_again():
    doubtful = gate.judge_turns([simulated.in_turns(3, ["resnet18"], times=1.09)])
    assert [each.verdict for each in doubtful if each.key.model == "resnet18"] == ["too noisy to tell"]
    assert gate.in_doubt(doubtful) == {"resnet18"}
    assert gate.in_doubt([each._replace(sittings=gate.MOST_SITTINGS) for each in doubtful]) == set()
    assert gate.in_doubt(gate.judge_turns([simulated.in_turns(3, ["resnet18"], times=1.5)])) == set()
    geomean = [each for each in doubtful if each.key.model == "geomean"]
    everywhere = [each for each in doubtful if not each.in_doubt] + [each._replace(allowed=0.01) for each in geomean]
    assert gate.in_doubt(everywhere) == {"squeezenet1_1", "mobilenet_v2"}


def test_sittings_with_fewer_models():
    first = simulated.in_turns(0)
    second = simulated.in_turns(1, models=["resnet18"])
    counts = {each.key.model: each.sittings for each in gate.judge_turns([first, second])}
    assert counts == {"resnet18": 2, "squeezenet1_1": 1, "mobilenet_v2": 1, "geomean": 1}
    assert "ms before" in gate.markdown(gate.judge_turns([first]))
    with pytest.raises(GateError, match="has no row of the modes but eager"):
        gate.judge_turns([first], modes=["eager"])


def test_the_table_says_what_moved():
    text = gate.markdown(gate.judge(*simulated.two_runs(0, ["resnet18"])), ["a note"])
    assert text.startswith("## Performance: regression of resnet18 (inference, openxla)")
    row = next(line for line in _lines(text) if line.startswith("| inference | openxla | resnet18 |"))
    assert row.split(" | ")[3:5] == ["0.84", "0.74"]
    assert row.endswith("| -7% | **fell** |")
    assert text.endswith("a note")
    assert gate.markdown(gate.judge(*simulated.two_runs(0))).startswith("## Performance: no regression")


def test_what_rose_and_what_is_too_noisy_show():
    before, after = simulated.two_runs(0, ["resnet18"], times=0.7)
    assert "| rose |" in "\n".join(_lines(gate.markdown(gate.judge(before, after))))
    before, after = simulated.two_runs(0, rounds=8)
    assert "too noisy to tell" in gate.markdown(gate.judge(before, after))


def test_a_mode_that_fails_now_is_a_regression():
    before, after = simulated.two_runs(0)
    after = [
        {**record, "failure": "it broke"}
        if (record.get("model"), record.get("mode")) == ("resnet18", "openxla")
        else record
        for record in after
    ]
    findings = gate.judge(before, after)
    assert _fell(findings) == ["resnet18"]
    assert "inference openxla resnet18 fails: it broke" in gate.markdown(findings)
    assert _fell(gate.judge(after, before)) == []
    assert "failed before" in gate.markdown(gate.judge(after, before))


def _without(records, model, mode):
    return [each for each in records if (each.get("model"), each.get("mode")) != (model, mode)]


def _changed(records, **fields):
    return [{**record, **fields} if record["record"] == "row" else record for record in records]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda old, new: (old, _without(new, "resnet18", "openxla")), "the results lack resnet18 inference openxla"),
        (lambda old, new: (old, _without(new, "resnet18", "eager")), "the results have no times of resnet18 inference"),
        (lambda old, new: (_changed(old, loop=2), new), "was measured with loop 2, and now with None"),
        (
            lambda old, new: (old, _changed(new, input_shape=[1])),
            r"with input_shape \[4, 3, 64, 64\], and now with \[1\]",
        ),
        (
            lambda old, new: (_changed(old, times_ms=[1.0] * 3), new),
            "3 rounds are too few .* larger --repeat and --budget",
        ),
        (lambda old, new: (_changed(old, failure="no"), new), "every row of the baseline failed"),
        (lambda old, new: (old[:1], new), "the baseline has no row of the modes lazy, openxla"),
    ],
)
def test_results_that_cannot_be_compared(spoil, message):
    with pytest.raises(GateError, match=message):
        gate.judge(*spoil(*simulated.two_runs(0)))


def test_environments_are_compared():
    before, after = ([copy.deepcopy(simulated.ENVIRONMENT)] for _ in range(2))
    assert gate.check_comparable(before, after) == []
    after[0]["machine"]["memory_gib"] = 23.4
    after[0]["versions"]["jax"] = "0.11.0"
    assert gate.check_comparable(before, after) == ["jax was 0.10.2 and is 0.11.0"]
    after[0]["flags"] = {"XLA_FLAGS": "--x"}
    with pytest.raises(GateError, match=r"the flags differ: none in the baseline, {'XLA_FLAGS': '--x'} now"):
        gate.check_comparable(before, after)
    after[0]["machine"]["cores"] = 64
    with pytest.raises(GateError, match="on the kind of machine that it names: its cores is 2, the results' 64"):
        gate.check_comparable(before, after)
    with pytest.raises(GateError, match="the results do not say on which machine they were measured"):
        gate.check_comparable(before, [])
