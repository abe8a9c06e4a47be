"""The regression gate, on simulated results."""

import copy
import re

import pytest

from benchmarks import gate
from benchmarks.gate import Allowed, GateError
from tests.benchmarks import simulated

TRIALS = 20


def _fell(findings):
    return [each.key.model for each in findings if each.fell]


def _lines(text):
    return [re.sub(r"\s+", " ", line) for line in text.splitlines()]


def _verdict(seed, slower, together):
    """As the command finds it: what fell in turns is measured again, by other processes."""
    first = gate.judge(*simulated.two_runs(seed, slower, together=together), together=together)
    if not together or not _fell(first):
        return _fell(first)
    second = gate.judge(*simulated.two_runs(1000 + seed, slower, together=together), together=together)
    return _fell(gate.fallen_twice(first, second))


@pytest.mark.parametrize("together", [True, False])
def test_a_slowdown_of_15_percent_is_caught_in_20_of_20_trials(together):
    caught = [_verdict(seed, simulated.MODELS, together) for seed in range(TRIALS)]
    assert all("geomean" in fell for fell in caught)


def test_a_slowdown_of_one_model_is_caught_in_20_of_20_trials():
    caught = [_verdict(seed, ["resnet18"], True) for seed in range(TRIALS)]
    assert all("resnet18" in fell for fell in caught)
    assert not any({"squeezenet1_1", "mobilenet_v2"} & set(fell) for fell in caught)


@pytest.mark.parametrize("together", [True, False])
def test_the_same_code_passes_in_20_of_20_trials(together):
    assert [_verdict(seed, [], together) for seed in range(TRIALS)] == [[]] * TRIALS


def test_what_is_allowed_is_by_model():
    before, after = simulated.two_runs(0, ["resnet18"])
    assert "resnet18" not in _fell(gate.judge(before, after, Allowed(models={"resnet18": 0.3}), together=True))
    assert "resnet18" in _fell(gate.judge(before, after, Allowed(0.01, models={"vgg16": 0.3}), together=True))


def test_a_fall_counts_where_both_measurements_show_it():
    fell, passed = (
        gate.judge(*simulated.two_runs(seed, slower), together=True)
        for seed, slower in ((0, simulated.MODELS), (1, []))
    )
    assert _fell(gate.fallen_twice(fell, fell)) == _fell(fell)
    assert _fell(gate.fallen_twice(passed, fell)) == []
    assert "fell only once" in gate.markdown(gate.fallen_twice(passed, fell))


def test_the_table_says_what_moved():
    text = gate.markdown(gate.judge(*simulated.two_runs(0, ["resnet18"]), together=True), ["a note"])
    assert text.startswith("## Performance: regression of resnet18 (inference, openxla)")
    row = next(line for line in _lines(text) if line.startswith("| inference | openxla | resnet18 |"))
    assert row.split(" | ")[3:5] == ["0.83", "0.73"]
    assert row.endswith("| -5% | **fell** |")
    assert text.endswith("a note")
    assert gate.markdown(gate.judge(*simulated.two_runs(0), together=True)).startswith("## Performance: no regression")


def test_what_rose_and_what_is_too_noisy_show():
    before, after = simulated.two_runs(0, ["resnet18"], times=0.7)
    assert "| rose |" in "\n".join(_lines(gate.markdown(gate.judge(before, after, together=True))))
    before, after = simulated.two_runs(0, rounds=6)
    assert "too noisy to tell" in gate.markdown(gate.judge(before, after, together=True))


def test_a_mode_that_fails_now_is_a_regression():
    before, after = simulated.two_runs(0)
    after = [
        {**record, "failure": "it broke"}
        if (record.get("model"), record.get("mode")) == ("resnet18", "openxla")
        else record
        for record in after
    ]
    findings = gate.judge(before, after, together=True)
    assert _fell(findings) == ["resnet18"]
    assert "inference openxla resnet18 fails: it broke" in gate.markdown(findings)
    assert _fell(gate.judge(after, before, together=True)) == []
    assert "failed before" in gate.markdown(gate.judge(after, before, together=True))


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
