"""Histograms: edges, bounds from the data, and bounds that are not finite."""

from __future__ import annotations

import math

import pytest
import torch
from comparison import check

import lazy_runtime

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_elements_on_edges_are_counted_where_torch_counts_them(dtype):
    x = (torch.arange(101) * 0.01).to(dtype)
    check(torch.histc, x, 100, 0, 1)
    check(torch.histogram, x, 100, range=(0.0, 1.0))


@pytest.mark.parametrize("values", [[1.0, 2, 3], [1.0, 1], []])
def test_bounds_from_the_data(values):
    check(torch.histc, torch.tensor(values), 4)
    check(torch.histogram, torch.tensor(values), 4)


def test_what_lies_outside_is_not_counted():
    check(torch.histc, torch.tensor([1.0, 2, NAN, INF, -1]), 4, 0, 3)
    check(torch.histogram, torch.tensor([1.0, 2, NAN, -INF]), torch.tensor([0.0, 1.5, 4]), density=True)


@pytest.mark.parametrize("function", [torch.histc, torch.histogram])
def test_bounds_that_are_not_finite(function):
    result = function(torch.tensor([1.0, INF], device="xla"), 3)
    with pytest.raises(RuntimeError, match=r"range .*\[1, inf\] is not finite"):
        lazy_runtime.sync(wait=True)
    del result  # until here it is wanted


def test_integers_are_refused():
    with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
        torch.histc(torch.tensor([1], device="xla"))
