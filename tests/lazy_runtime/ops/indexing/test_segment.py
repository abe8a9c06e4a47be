"""Reductions over segments: empty ones, nans, zeros, and lengths that do not fit."""

from __future__ import annotations

import math

import pytest
import torch

import lazy_runtime
from tests.lazy_runtime.ops.comparison import check, rand

NAN = math.nan


@pytest.mark.parametrize("initial", [None, 3.0])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
def test_empty_segments_and_nans(reduce, initial):
    x = torch.tensor([1.0, 2, NAN, 4, 0, 5, 0], requires_grad=True)
    check(torch.segment_reduce, x, reduce, lengths=torch.tensor([2, 0, 2, 3]), initial=initial)


def test_the_gradient_of_a_product_with_zeros():
    x = torch.tensor([0.0, 2, 3, 0, 0, 5], requires_grad=True)
    check(torch.segment_reduce, x, "prod", lengths=torch.tensor([3, 3]))


@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_rows_of_no_segment(reduce):
    check(torch.segment_reduce, rand(6, 2), reduce, lengths=torch.tensor([2, 1]), unsafe=True)
    check(torch.segment_reduce, rand(2, 4, 3), reduce, lengths=torch.tensor([[1, 3, 0], [2, 2, 0]]), axis=1)


@pytest.mark.parametrize(("lengths", "message"), [([3, -1], "negative value"), ([1, 2], "to sum to data.size")])
def test_lengths_that_do_not_fit(lengths, message):
    result = torch.segment_reduce(torch.ones(2, device="xla"), "sum", lengths=torch.tensor(lengths, device="xla"))
    with pytest.raises(RuntimeError, match=message):
        lazy_runtime.sync(wait=True)
    del result  # until here it is wanted


@pytest.mark.parametrize("places", [{"lengths": [3, -1], "unsafe": True}, {"offsets": [0, 2, 1]}])
def test_a_segment_that_ends_before_it_starts(places):
    places = {name: torch.tensor(x) if isinstance(x, list) else x for name, x in places.items()}
    there = {name: x.to("xla") if isinstance(x, torch.Tensor) else x for name, x in places.items()}
    with pytest.raises(RuntimeError, match="Expected segment_length >= 0"):
        torch.segment_reduce(torch.ones(2), "sum", **places)
    with pytest.raises(RuntimeError, match="Expected segment_length >= 0"):
        torch.segment_reduce(torch.ones(2, device="xla"), "sum", **there).cpu()


def test_an_axis_from_the_end():
    check(torch.segment_reduce, rand(2, 4, 3), "sum", lengths=torch.tensor([[1, 3], [2, 2]]), axis=-2)


def test_segments_of_other_rows():
    """Torch's CPU kernel reads beyond them."""
    with pytest.raises(RuntimeError, match=r"segments for each of \[1\] rows"):
        torch.segment_reduce(
            torch.ones(1, 4, device="xla"), "sum", lengths=torch.ones(2, 4, device="xla", dtype=int), axis=1
        )


def test_no_rows():
    check(torch.segment_reduce, torch.ones(0), "max", lengths=torch.tensor([0]))
    check(torch.segment_reduce, torch.ones(0, 2), "sum", offsets=torch.tensor([0, 0]))
