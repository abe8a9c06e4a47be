"""PyTorch/XLA's own names beside torch.distributed's."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed

from lazy_runtime.torch_xla import runtime as xr
from lazy_runtime.torch_xla.distributed import xla_backend
from lazy_runtime.torch_xla.distributed.xla_multiprocessing import create_optimized_replica_groups
from tests.lazy_runtime.torch_xla.distributed.test_xla_backend import gloo

dist: Any = torch.distributed


def scattered() -> list[list[float]]:
    gloo()
    rank, size = xr.global_ordinal(), xr.world_size()
    outputs = [torch.empty(3, device="xla") for _ in range(2)]
    inputs = [[torch.full((3,), float(rank + number + 1), device="xla")] * size for number in range(2)]
    dist.group.WORLD.reduce_scatter_coalesced(outputs, inputs)
    pair = xla_backend.new_xla_process_group(range(size))
    total = torch.full((1,), float(rank), device="xla")
    dist.all_reduce(total, group=pair)
    return [each.tolist() for each in (*outputs, total)]


def test_groups_and_lists_of_parts(ranks):
    assert ranks(2)(scattered) == [[[3.0] * 3, [5.0] * 3, [1.0]]] * 2


def test_groups_of_all():
    assert create_optimized_replica_groups() is None
    x = torch.ones(2, device="xla")
    from lazy_runtime.torch_xla.core import xla_model as xm

    assert xm.all_reduce("sum", x, groups=create_optimized_replica_groups()).tolist() == [1, 1]
