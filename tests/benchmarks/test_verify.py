import json
import math

import pytest
import torch

from benchmarks import verify


def test_error_is_by_the_norm_over_all_tensors_together():
    expected = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[4.0]])}
    actual = {"a": torch.tensor([3.0, 0.5]), "b": torch.tensor([[4.0]])}
    assert verify.relative_error(actual, expected) == pytest.approx(0.1)
    assert verify.relative_error(expected, expected) == 0.0


def test_error_of_zeros():
    zero, one = {"a": torch.zeros(2)}, {"a": torch.ones(2)}
    assert verify.relative_error(zero, zero) == 0.0
    assert verify.relative_error(one, zero) == math.inf


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_do_not_pass(value):
    found = verify.check("inference", {"a": torch.tensor([value])}, verify.Reference({"a": torch.tensor([1.0])}))
    assert not found.passed
    json.dumps(found.record(), allow_nan=False)


@pytest.mark.parametrize(
    ("actual", "message"),
    [
        ({}, "missing \\['a'\\]"),
        ({"a": torch.ones(2), "b": torch.ones(1)}, "additional \\['b'\\]"),
        ({"a": torch.ones(2, 1)}, "shape \\[2, 1\\]"),
        ({"a": torch.ones(2, dtype=torch.float64)}, "torch.float64"),
    ],
)
def test_other_results_than_eagers_raise(actual, message):
    with pytest.raises(ValueError, match=message):
        verify.relative_error(actual, {"a": torch.ones(2)})


@pytest.mark.parametrize(
    ("test", "dtype", "own_error", "bound"),
    [
        ("inference", torch.float32, 0.0, 1e-4),
        ("training", torch.float32, 0.0, 1e-3),
        ("training", torch.float32, 1e-4, 1e-3),
        ("training", torch.float32, 2e-2, 4e-2),
        ("step", torch.float32, 2e-2, 4e-2),
        ("training", torch.float64, 0.0, 1e-9),
    ],
)
def test_bounds(test, dtype, own_error, bound):
    assert verify.bound(test, dtype, own_error) == bound


@pytest.mark.parametrize(("own_error", "bound"), [(0.0, 5e-2 / 8), (0.25, 0.5)])
def test_bounds_of_tf32_whose_gradients_may_mean_little(own_error, bound):
    assert verify.bound("training", torch.float32, own_error, tf32=True) == bound


def test_eager_in_another_memory_format_may_be_further_from_float64():
    """Its kernels are the peer's, and may be less exact than those for torch's own order."""
    exact = {"weight": torch.ones(4)}
    reference = verify.Reference(exact, own_error=1e-2)
    away = {"weight": torch.full((4,), 1.03)}
    assert not verify.check("training", away, reference).passed
    assert verify.check("training", away, reference, of_eagers=verify.OF_EAGERS_IN_ANOTHER_FORMAT).passed


def test_check_says_what_was_compared():
    gradients = {"weight": torch.ones(2, dtype=torch.float64)}
    reference = verify.Reference(gradients)
    assert verify.check("training", gradients, reference) == ("float64 gradients", 0.0, 1e-9)
    assert verify.check("step", gradients, reference) == ("float64 updates", 0.0, 1e-9)
