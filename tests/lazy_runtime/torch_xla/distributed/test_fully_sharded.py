"""FSDP2 and ZeroRedundancyOptimizer, against one process on the CPU with the same batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.lazy_runtime.torch_xla.distributed.test_device_mesh import adamw, alone, data, net
from tests.lazy_runtime.torch_xla.distributed.test_xla_backend import gloo, steps

dist: Any = torch.distributed

STEPS = 4


def batches() -> list[torch.Tensor]:
    return [data(8, 4, seed=step) for step in range(STEPS)]


def sharded() -> torch.nn.Module:
    gloo()
    mesh = init_device_mesh("xla", (dist.get_world_size(),))
    model = net().to("xla")
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def fully_sharded() -> tuple[list[float], list[int], list[int]]:
    model = sharded()
    losses, ran = steps(model, adamw(model.parameters()), batches())
    return losses, ran, [parameter.to_local().numel() for parameter in model.parameters()]


@pytest.mark.parametrize("count", [2, 4])
def test_fully_shard(ranks, count):
    wanted = alone(adamw, STEPS)
    for losses, ran, sizes in ranks(count)(fully_sharded):
        assert losses == pytest.approx(wanted, abs=1e-5)
        assert ran[-2:] == [1, 1]
        assert sizes[:2] == [64 // count, 16 // count]


def evaluated() -> tuple[list[float], list[int]]:
    model = sharded()
    optimizer = adamw(model.parameters())
    losses, _ = steps(model, optimizer, batches()[:2])
    with torch.no_grad():
        model(batches()[0].to("xla")).cpu()
    further, ran = steps(model, optimizer, batches()[2:])
    return losses + further, ran


def test_training_goes_on_after_an_evaluation(ranks):
    for losses, ran in ranks(2)(evaluated):
        assert losses == pytest.approx(alone(adamw, STEPS), abs=1e-5)
        assert ran == [1, 1]


def redundancy_removed() -> tuple[list[float], list[int]]:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # warns of what torch.jit is

    gloo()
    model = torch.nn.parallel.DistributedDataParallel(net().to("xla"))
    return steps(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.05), batches())


def test_zero_redundancy_optimizer(ranks):
    for losses, ran in ranks(2)(redundancy_removed):
        assert losses == pytest.approx(alone(adamw, STEPS), abs=1e-5)
        assert ran[-1] == 1
