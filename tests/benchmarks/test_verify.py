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
    found = verify.check("resnet18", "inference", {"a": torch.tensor([value])}, {"a": torch.tensor([1.0])})
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
    ("name", "test", "dtype", "bound"),
    [
        ("resnet18", "inference", torch.float32, 1e-4),
        ("resnet18", "training", torch.float32, 5e-2),
        ("vgg16", "training", torch.float32, 1e-3),
        ("resnet18", "training", torch.float64, 1e-9),
        ("resnet18", "step", torch.float32, 5e-2),
        ("vgg16", "step", torch.float32, 1e-3),
    ],
)
def test_bounds(name, test, dtype, bound):
    assert verify.bound(name, test, dtype) == bound


def test_check_says_what_was_compared():
    gradients = {"weight": torch.ones(2, dtype=torch.float64)}
    assert verify.check("vgg16", "training", gradients, gradients) == ("float64 gradients", 0.0, 1e-9)
    assert verify.check("vgg16", "step", gradients, gradients) == ("float64 updates", 0.0, 1e-9)
