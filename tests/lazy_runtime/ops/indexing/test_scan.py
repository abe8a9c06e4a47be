"""Cumulative operators where OpInfo's samples do not look: nans, infinities, ties, wrap-around."""

from __future__ import annotations

import math

import pytest
import torch

from tests.lazy_runtime.ops.comparison import check

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("function", [torch.cummax, torch.cummin])
@pytest.mark.parametrize(
    "values",
    [
        [1.0, 1, 0, NAN, 2, NAN, 5],
        [-INF, -INF, INF, INF],
        [-0.0, 0.0, -0.0],
        [False, True, False, True],
    ],
)
def test_running_extremes_and_where_they_stand(function, values):
    """Of equal elements the last, and a nan is never left again."""
    check(function, torch.tensor(values), 0)


@pytest.mark.parametrize("function", [torch.cummax, torch.cummin, torch.logcumsumexp, torch.cumsum, torch.cumprod])
@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (1,)])
def test_small_shapes(function, shape):
    check(function, torch.ones(shape), -1)


def test_logcumsumexp_of_infinities():
    check(torch.logcumsumexp, torch.tensor([-INF, -INF, 1, INF, 2, NAN, 1]), 0)
    check(torch.logcumsumexp, torch.tensor([1 + 1j, -INF, 2j, INF, 1j, complex(NAN, 1)]), 0)
    check(torch.logcumsumexp, torch.tensor([complex(-INF, 0), complex(-INF, 1), 1 + 1j]), 0)


def test_integers_wrap_around():
    check(torch.cumsum, torch.tensor([200, 100], dtype=torch.uint8), 0, dtype=torch.uint8)
    check(torch.cumprod, torch.tensor([2**40, 2**40]), 0)


def test_dtypes_that_torch_refuses():
    with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
        torch.tensor([1, 2], device="xla").logcumsumexp(0)
    with pytest.raises(NotImplementedError, match="not implemented for 'ComplexFloat'"):
        torch.tensor([1j], device="xla").cummax(0)
