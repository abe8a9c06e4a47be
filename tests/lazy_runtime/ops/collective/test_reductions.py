"""How many collectives a training step has in the program that XLA runs, and of how many bytes."""

from __future__ import annotations

import math
import os
import re
from typing import Any

import torch
import torch.distributed

import lazy_runtime
from lazy_runtime.compilation import compiler
from lazy_runtime.torch_xla.core import xla_model as xm
from tests.lazy_runtime.torch_xla.distributed.test_xla_backend import gloo

_BYTES = {"f32": 4, "bf16": 2, "s32": 4, "u32": 4}


def all_reduces() -> list[int]:
    """The bytes of each all-reduce in the program of all ranks that was run last."""
    newest = max((each for each in compiler._executables.values() if each.is_collective), key=lambda each: each.used)
    text = newest.compiled.as_text()
    assert not re.search(r" (all-gather|all-to-all|reduce-scatter|collective-permute)(-start)?\(", text)
    found = re.findall(r"= (\w+)\[([\d,]*)\]\S* all-reduce(?:-start)?\(", text)
    return [_BYTES[dtype] * math.prod(int(size) for size in sizes.split(",") if size) for dtype, sizes in found]


def net(width: int, layers: int = 3) -> torch.nn.Module:
    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))


def size(model: torch.nn.Module) -> int:
    return sum(each.numel() * each.element_size() for each in model.parameters())


def of_optimizer_step(width: int, bucket: str) -> tuple[list[int], int]:
    model = net(width).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    os.environ["ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB"] = bucket
    try:
        model(torch.ones(2, width, device="xla")).square().mean().backward()
        xm.optimizer_step(optimizer)
        lazy_runtime.sync()
    finally:
        del os.environ["ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB"]
    return all_reduces(), size(model)


def test_optimizer_step_reduces_all_gradients_at_once(ranks):
    for found, bytes in ranks(2)(of_optimizer_step, 16, ""):
        assert found == [bytes]


def test_optimizer_step_reduces_in_buckets(ranks):
    for found, bytes in ranks(2)(of_optimizer_step, 400, "1"):
        assert len(found) == 3  # a layer of 640 kB each
        assert sum(found) == bytes
        assert max(found) <= 1 << 20


def of_ddp(width: int) -> tuple[list[int], list[int], int]:
    gloo()
    net_on_xla = net(width).to("xla")
    model: Any = torch.nn.parallel.DistributedDataParallel(net_on_xla, bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):  # DDP forms its buckets anew after the first step
        model(torch.ones(2, width, device="xla")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        lazy_runtime.sync()
    told = model._get_ddp_logging_data()
    buckets = told.get("rebuilt_bucket_sizes") or told["bucket_sizes"]
    return all_reduces(), [int(each) for each in buckets.split(",")], size(net_on_xla)


def test_distributed_data_parallel_reduces_a_bucket_at_once(ranks):
    for width, several in ((16, False), (400, True)):
        for found, buckets, bytes in ranks(2)(of_ddp, width):
            assert sorted(found) == sorted(buckets)
            assert sum(found) == bytes
            assert (len(found) > 1) is several
            assert len(found) < 6  # which is how many parameters there are
