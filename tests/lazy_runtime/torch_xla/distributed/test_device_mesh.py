"""`torch.distributed.tensor` on meshes of ranks, against one process on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import lazy_runtime
from tests.lazy_runtime.torch_xla.distributed.test_xla_backend import executions, gloo

dist: Any = torch.distributed

_meshes: dict[tuple[int, ...], Any] = {}


def mesh_of(*sizes: int) -> Any:
    """Made once: every mesh makes groups."""
    gloo()
    if sizes not in _meshes:
        _meshes[sizes] = init_device_mesh("xla", sizes, mesh_dim_names=("dp", "tp")[-len(sizes) :])
    return _meshes[sizes]


def data(*sizes: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


def same(found: Any, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found.full_tensor().cpu(), wanted)


def distributed() -> None:
    mesh = mesh_of(2, 2)
    whole = data(8, 6)
    x = distribute_tensor(whole.to("xla"), mesh, [Shard(0), Shard(1)])
    assert x.to_local().shape == (4, 3)
    assert x.device.type == "xla"
    for placements in ([Replicate(), Shard(0)], [Shard(0), Shard(0)], [Shard(1), Shard(0)], [Replicate()] * 2):
        x = x.redistribute(mesh, placements)
        same(x, whole)
    uneven = data(5, 3)
    same(distribute_tensor(uneven, mesh, [Shard(0), Replicate()]).redistribute(mesh, [Shard(1), Shard(0)]), uneven)
    rows = distribute_tensor(whole, mesh, [Shard(0), Replicate()])
    same(torch.mm(rows, rows.t()), whole @ whole.t())
    same(rows.softmax(-1).sum(0), whole.softmax(-1).sum(0))
    assert rows.sum().full_tensor().item() == pytest.approx(whole.sum().item(), abs=1e-4)
    part = DTensor.from_local(torch.full((2,), float(dist.get_rank()), device="xla"), mesh, [Partial("max")] * 2)
    same(part, torch.full((2,), 3.0))
    changed = rows.clone()
    changed.mul_(2).add_(rows)
    same(changed, whole * 3)
    same(changed.to(torch.float64), (whole * 3).double())
    module = distribute_module(torch.nn.Linear(6, 2).to("xla"), mesh)
    assert all(isinstance(each, DTensor) for each in module.parameters())


def test_tensors_and_operators(ranks):
    ranks(4)(distributed)


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))


def alone(make: Any, steps: int = 4) -> list[float]:
    """The losses of one process."""
    model = net()
    optimizer = make(model.parameters())
    losses = []
    for step in range(steps):
        loss = model(data(8, 4, seed=step)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.05)


def tensor_parallel() -> tuple[list[float], list[int]]:
    mesh = mesh_of(2, 2)
    model = parallelize_module(net().to("xla"), mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = adamw(model.parameters())
    losses, ran = [], []
    for step in range(4):
        before = executions()
        loss = model(data(8, 4, seed=step).to("xla")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        lazy_runtime.sync()
        ran.append(executions() - before)
        losses.append(loss.item())
    return losses, ran


def test_tensor_parallel(ranks):
    for losses, ran in ranks(4)(tensor_parallel):
        assert losses == pytest.approx(alone(adamw), abs=1e-5)
        assert ran[-2:] == [1, 1]


def traced() -> None:
    mesh = mesh_of(2, 2)

    @torch.compile(backend="openxla", fullgraph=True)
    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        columns = DTensor.from_local(weight, mesh["tp"], [Shard(1)])
        y = DTensor.from_local(x, mesh["tp"], [Replicate()]) @ columns
        return y.redistribute(placements=[Replicate()]).to_local().relu()

    x, weight = data(3, 4), data(4, 6, seed=1)
    mine = weight.chunk(2, 1)[mesh.get_local_rank("tp")]
    for _ in range(2):
        before = executions()
        found = function(x.to("xla"), mine.to("xla"))
        torch.testing.assert_close(found.cpu(), (x @ weight).relu())
        assert executions() == before + 1


def test_traced(ranks):
    ranks(4)(traced)
