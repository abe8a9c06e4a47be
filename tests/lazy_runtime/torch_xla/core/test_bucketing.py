from __future__ import annotations

import pytest
import torch

from lazy_runtime.torch_xla import runtime as xr
from lazy_runtime.torch_xla.core import xla_model as xm

KILOBYTE = 1 / 1024


def tensors(rank: int) -> list[torch.Tensor]:
    return [torch.arange(size, dtype=torch.float32) + rank for size in (2, 100, 300, 4, 6)]


def test_what_is_called_at_once():
    calls = []

    def function(given, outputs):
        calls.append(
            ([x.numel() for x in given], None if outputs is None else len(outputs))
            if isinstance(given, list)
            else given.numel()
        )
        return [x + 1 for x in given] if isinstance(given, list) else given + 1

    found = xm.CoalescingBuckets(function, tensors(0), bucket_cap_mb=KILOBYTE)()
    assert calls == [([2, 100], None), 300, ([4, 6], None)]
    assert [x.numel() for x in found] == [2, 100, 300, 4, 6]
    calls.clear()
    outputs = tensors(0)
    buckets = xm.CoalescingBuckets(function, tensors(0), outputs, bucket_cap_mb=1)
    assert len(buckets()) == 5
    assert calls == [([2, 100, 300, 4, 6], 5)]
    buckets.add(torch.ones(1), 0)
    buckets.flush()
    assert calls[-1] == 1


def test_wrong_lists():
    with pytest.raises(TypeError, match="input_list: expected a list of tensors, got Tensor"):
        xm.CoalescingBuckets(print, torch.ones(2))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="output_list"):
        xm.CoalescingBuckets(print, [torch.ones(2)], [1])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="expected 1 tensors"):
        xm.CoalescingBuckets(print, [torch.ones(2)], [])


def together():
    rank, count = xr.global_ordinal(), xr.world_size()
    mine = [x.to("xla") for x in tensors(rank)]
    gathered = xm.all_gather_bucketized(mine, bucket_cap_mb=KILOBYTE)
    scattered = xm.reduce_scatter_bucketized("sum", mine, 1.0, 0, count, bucket_cap_mb=KILOBYTE)
    outputs = [torch.empty_like(x) for x in gathered]
    xm.all_gather_bucketized(mine, output=outputs, bucket_cap_mb=KILOBYTE)
    xm.all_reduce_bucketized_gradients(mine, 0.5, None, True, bucket_cap_mb=KILOBYTE)
    return [[x.cpu() for x in each] for each in (gathered, scattered, outputs, mine)]


def test_collectives(ranks):
    both = [tensors(0), tensors(1)]
    for rank, (gathered, scattered, outputs, reduced) in enumerate(ranks(2)(together)):
        for number, each in enumerate(zip(*both, strict=True)):
            assert torch.equal(gathered[number], torch.cat(each))
            assert torch.equal(outputs[number], torch.cat(each))
            assert torch.equal(scattered[number], sum(each).chunk(2)[rank])  # type: ignore[union-attr]
            assert torch.equal(reduced[number], sum(each) / 2)
