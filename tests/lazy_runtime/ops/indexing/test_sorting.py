"""Sorting, order statistics and searching where OpInfo's samples do not look."""

from __future__ import annotations

import math

import pytest
import torch

import lazy_runtime
from tests.lazy_runtime.ops.comparison import check

NAN, INF = math.nan, math.inf
MIXED = torch.tensor([2.0, NAN, 1, -0.0, 0.0, NAN, -INF])


@pytest.mark.parametrize("descending", [False, True])
def test_a_stable_sort_keeps_ties_and_nans_in_order(descending):
    check(torch.sort, MIXED, stable=True, descending=descending)
    check(torch.sort, torch.tensor([3, 1, 3, 1, 2], dtype=torch.uint8), stable=True, descending=descending)


def test_indices_of_an_unstable_sort_select_the_sorted_values():
    x = torch.randint(0, 3, (50,), generator=torch.Generator().manual_seed(0)).to("xla")
    for values, indices in (x.sort(), x.sort(descending=True), x.topk(20)):
        assert torch.equal(x[indices], values)
        assert indices.cpu().unique().numel() == indices.numel()


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.median(),
        lambda x: x.nanmedian(),
        lambda x: x.median(0),
        lambda x: x.nanmedian(0),
        lambda x: x.topk(3),
        lambda x: x.topk(7, largest=False),
    ],
)
@pytest.mark.parametrize("values", [[1.0, NAN, 2, NAN, 2, 7, 9], [NAN] * 7, [3.0, 1, 2, 5, 4, 7, 6]])
def test_nans_in_order_statistics(call, values):
    x = torch.tensor(values)
    expected, result = call(x), call(x.to("xla"))
    if isinstance(expected, torch.Tensor):
        expected, result = (expected,), (result,)
    torch.testing.assert_close(result[0].cpu(), expected[0], equal_nan=True)
    if len(result) > 1:  # which of several nans is open
        torch.testing.assert_close(x[result[1].cpu()], expected[0], equal_nan=True)


def test_of_the_most_frequent_the_smallest_and_its_last_place():
    check(torch.mode, torch.tensor([[3, 1, 2, 1, 2], [0, 0, 5, 5, 5]]))
    check(torch.mode, torch.tensor([[3.0, 1], [3, 2]]), 0, keepdim=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.uint8])
def test_the_median_of_nothing(dtype):
    check(torch.median, torch.zeros(0, dtype=dtype))


@pytest.mark.parametrize("function", [torch.median, torch.mode, lambda x, dim: torch.kthvalue(x, 1, dim)])
def test_an_empty_dimension(function):
    check(function, torch.zeros(3, 0), 0)
    with pytest.raises(IndexError, match="Expected reduction dim 1 to have non-zero size"):
        function(torch.zeros(3, 0, device="xla"), 1)


@pytest.mark.parametrize("right", [False, True])
def test_searching_among_nans(right):
    values = torch.tensor([1.5, 3, NAN, 2, -INF])
    check(torch.searchsorted, torch.tensor([1.0, 2, NAN]), values, right=right)
    check(torch.bucketize, values, torch.tensor([1.0, 2]), right=right)
    check(torch.searchsorted, torch.tensor([3, 1, 2]), torch.tensor([1, 2, 3]), right=right)  # it is not sorted


def test_a_number_is_compared_in_the_boundaries_dtype():
    check(torch.searchsorted, torch.tensor([0.1, 0.2]), 0.1, right=True)


def test_a_sorter_out_of_range():
    x = torch.tensor([1, 2], device="xla")
    result = torch.searchsorted(x, x, sorter=torch.tensor([0, 5], device="xla"))
    with pytest.raises(RuntimeError, match="sorter index out of range"):
        lazy_runtime.sync(wait=True)
    del result  # until here it is wanted


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.searchsorted(x, x, side="middle"),
        lambda x: torch.bucketize(x, x[None]),
        lambda x: torch.kthvalue(x, 3),
        lambda x: torch.topk(x, 3),
        lambda x: torch.sort(x + 1j),
        lambda x: torch.median(x > 1),
        lambda x: torch.sort(x[0], 1),
    ],
)
def test_what_torch_refuses(call):
    x = torch.tensor([1.0, 2.0])
    with pytest.raises(Exception) as expected:  # noqa: PT011  torch says which
        call(x)
    with pytest.raises(expected.type) as found:
        call(x.to("xla"))
    assert str(found.value) == str(expected.value)
