import numpy
import pytest

from benchmarks.regression import changes
from benchmarks.regression.changes import Series
from tests.benchmarks import simulated


def _series(seed, eager=20.0, mode=10.0, rounds=100):
    generator = numpy.random.default_rng(seed)
    walk = simulated.drift(generator, rounds)
    return Series(*(simulated.series(generator, each, walk) for each in (eager, mode)))


def test_a_speedup_is_that_of_the_undisturbed_rounds():
    assert _series(0).speedup == pytest.approx(2.0, rel=0.05)
    disturbed = Series([20.0] * 40 + [90.0] * 60, [10.0] * 20 + [90.0] * 80)
    assert disturbed.speedup == pytest.approx(2.0)


@pytest.mark.parametrize("times", [0.8, 1.0, 1.15])
def test_the_interval_holds_the_change(times):
    for seed in range(10):
        found = changes.change(_series(seed), _series(seed + 100, mode=10.0 * times))
        assert found.low <= found.ratio <= found.high
        assert found.low * 0.95 <= 1 / times <= found.high * 1.05


@pytest.mark.parametrize("times", [0.8, 1.0, 1.15])
def test_the_interval_of_two_that_took_turns(times):
    outside = 0
    for seed in range(50):
        (before,), (after,) = simulated.in_turns(seed, ["resnet18"], times=times, models=["resnet18"])
        found = changes.change_in_turns(before["times_ms"], after["times_ms"], seed)
        assert found.low <= found.ratio <= found.high
        assert found.high / found.low > 1.2  # processes differ, however many rounds they have
        outside += not found.low <= 1 / times <= found.high
    assert outside <= 3


def test_a_mean_of_sittings_is_surer_than_one():
    pairs = [simulated.in_turns(seed, models=["resnet18"]) for seed in range(4)]
    moved = [
        changes.change_in_turns(before["times_ms"], after["times_ms"], seed)
        for seed, ((before,), (after,)) in enumerate(pairs)
    ]
    mean = changes.mean(moved)
    assert (mean.high / mean.low) < 0.7 * min(each.high / each.low for each in moved) + 0.3
    with pytest.raises(ValueError, match="5 rounds are too few"):
        changes.change_in_turns([1.0] * 5, [1.0] * 9)


def test_what_slows_down_eager_and_mode_alike_is_no_change():
    before = _series(0)
    after = Series([3 * each for each in before.eager_ms], [3 * each for each in before.mode_ms])
    assert changes.change(before, after).ratio == pytest.approx(1.0)


def test_more_rounds_leave_less_open():
    wide, narrow = (changes.change(_series(1, rounds=rounds), _series(2, rounds=rounds)) for rounds in (12, 400))
    assert narrow.high / narrow.low < wide.high / wide.low


def test_the_same_series_give_the_same_interval():
    first, second = (changes.change(_series(1), _series(2))[:3] for _ in range(2))
    assert first == second


def test_a_fall_is_one_only_with_its_whole_interval():
    draws = numpy.zeros(1)
    assert changes.Change(0.85, 0.80, 0.94, draws).below(0.05)
    assert not changes.Change(0.85, 0.70, 0.96, draws).below(0.05)
    assert changes.Change(1.15, 1.06, 1.2, draws).above(0.05)
    assert not changes.Change(1.15, 1.04, 1.2, draws).above(0.05)


def test_a_geomean_is_surer_than_one_model():
    moved = [changes.change(_series(seed), _series(seed + 50)) for seed in range(4)]
    mean = changes.mean(moved)
    assert mean.ratio == pytest.approx(numpy.prod([each.ratio for each in moved]) ** 0.25)
    assert mean.high / mean.low < min(each.high / each.low for each in moved)


def test_too_few_rounds():
    with pytest.raises(ValueError, match="5 rounds are too few to tell a change from noise: 6 is the least"):
        changes.change(_series(0, rounds=5), _series(1, rounds=6))
