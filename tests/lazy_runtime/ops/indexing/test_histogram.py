"""Histograms: edges, bounds from the data, and bounds that are not finite."""

from __future__ import annotations

import math

import pytest
import torch

import lazy_runtime
from tests.lazy_runtime.ops.comparison import check

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


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64])
@pytest.mark.parametrize("bounds", [(0, 3), (0, 0), (-2, 5), (1, 2)])
def test_integers_as_on_cuda(dtype, bounds):
    """Which the CPU refuses; where a bin is a number, it counts the same floats alike."""
    values = torch.tensor([[0, 1, 1, 3], [2, 3, 3, 3]])
    least, largest = bounds if bounds[0] != bounds[1] else (0, 3)
    bins = largest - least + 1
    found = torch.histc(values.to("xla", dtype), bins, *bounds)
    assert found.dtype == dtype
    assert found.tolist() == [int((values == number).sum()) for number in range(least, largest + 1)]


def test_integers_in_bins_of_several():
    found = torch.histc(torch.arange(10, device="xla"), 4, 0, 9)
    assert found.tolist() == [3, 2, 2, 3]  # (x - 0) * 4 // 9
    assert torch.histc(torch.tensor([7, 7], device="xla"), 3).tolist() == [0, 2, 0]
    assert torch.histc(torch.tensor([], device="xla", dtype=torch.int64), 3).tolist() == [0, 0, 0]


def test_what_is_refused():
    with pytest.raises(NotImplementedError, match="not implemented for 'Bool'"):
        torch.histc(torch.tensor([True], device="xla"))
    with pytest.raises(RuntimeError, match="bins must be > 0"):
        torch.histc(torch.tensor([1], device="xla"), 0)
