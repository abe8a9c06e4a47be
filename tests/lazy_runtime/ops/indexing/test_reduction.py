"""Reductions where OpInfo's samples do not look: nans, infinities, nothing to reduce, wrap-around, dtypes refused."""

from __future__ import annotations

import math

import pytest
import torch

from tests.lazy_runtime.ops.comparison import check

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function", [torch.max, torch.min, torch.amax, torch.amin, torch.argmax, torch.argmin])
@pytest.mark.parametrize("dim", [(), (0,)])
def test_a_nan_wins(function, dim, dtype):
    for values in ([1.0, NAN, 2, NAN, -INF], [NAN, 1, INF, 0, 0]):
        check(function, torch.tensor(values, dtype=dtype), *dim)


def test_a_nan_wins_in_long_rows():
    """Long enough that XLA's vectors hold all but the ends."""
    x = torch.zeros(3, 1000)
    x[0, 3], x[1, 500], x[2, 999] = NAN, NAN, NAN
    for function in (torch.amax, torch.amin, torch.argmax):
        check(function, x, 1)
    check(torch.aminmax, x, dim=1)


@pytest.mark.parametrize(
    "function", [torch.sum, torch.prod, torch.mean, torch.any, torch.all, torch.nansum, torch.count_nonzero]
)
def test_of_nothing(function):
    check(function, torch.zeros(0))
    check(function, torch.zeros(0, 3), 0)
    check(function, torch.zeros(0, 3), 1)


@pytest.mark.parametrize("function", [torch.max, torch.amin, torch.argmax, torch.aminmax, torch.hash_tensor])
def test_extremes_of_nothing_are_refused_as_by_torch(function):
    with pytest.raises(Exception) as expected:  # noqa: PT011  torch says which
        function(torch.zeros(0))
    with pytest.raises(expected.type) as found:
        function(torch.zeros(0, device="xla"))
    assert str(found.value) == str(expected.value)


def test_integers_wrap_around():
    check(torch.sum, torch.tensor([2**63 - 1, 1]))
    check(torch.sum, torch.tensor([2**31 - 1, 1], dtype=torch.int32), dtype=torch.int32)
    check(torch.prod, torch.tensor([2**40, 2**40]))


def test_half_precision_accumulates_in_float32():
    check(torch.sum, torch.tensor([60000.0, 60000, -60000], dtype=torch.float16))


@pytest.mark.parametrize("correction", [0, 1, 1.5])
def test_variance_of_large_numbers(correction):
    check(torch.var, torch.tensor([1e4, 1e4 + 1, 1e4 + 2]), correction=correction)


@pytest.mark.parametrize("function", [torch.var, torch.std, torch.var_mean, torch.std_mean, torch.argmax])
def test_dtypes_that_torch_refuses(function):
    x = torch.tensor([True])
    with pytest.raises(Exception) as expected:  # noqa: PT011  torch says which
        function(x)
    with pytest.raises(expected.type) as found:
        function(x.to("xla"))
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int32, torch.uint8, torch.bool])
def test_hash_tensor(dtype):
    x = torch.tensor([[-1.0, 3, 0], [1, 0, 7]]).to(dtype)
    check(torch.hash_tensor, x)
    check(torch.hash_tensor, x, 1, keepdim=True)
