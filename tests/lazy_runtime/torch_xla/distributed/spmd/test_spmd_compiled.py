"""Compiled functions on sharded tensors, and shardings within them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.torch_xla.distributed import spmd as xs
from lazy_runtime.torch_xla.experimental import eager_mode_context


def mesh() -> xs.Mesh:
    return xs.Mesh(range(4), (2, 2), ("data", "model"))


def form(tensor: torch.Tensor) -> str:
    return xs.wrap_as_sharded_tensor(tensor).sharding_spec


ROWS = "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}"


def inference() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8)).eval()
    model = copy.deepcopy(plain).to("xla")
    xs.mark_sharding(model[0].weight, mesh(), ("model", None))
    xs.mark_sharding(model[3].weight, mesh(), (None, "model"))
    compiled = torch.compile(model, backend="openxla")
    x = torch.randn(8, 8)
    with torch.no_grad():
        for _ in range(3):
            batch = xs.mark_sharding(x.to("xla"), mesh(), ("data", None))
            before = metrics.value("ExecuteComputation"), metrics.value("UncachedCompile")
            out = compiled(batch.global_tensor)
            assert form(out) == ROWS
            torch.testing.assert_close(out.cpu(), plain(x), rtol=1e-5, atol=1e-5)
        assert (metrics.value("ExecuteComputation"), metrics.value("UncachedCompile")) == (before[0] + 1, before[1])
        for other in (x.to("xla"), batch):  # not sharded; wrapped
            torch.testing.assert_close(compiled(other).cpu(), plain(x), rtol=1e-5, atol=1e-5)
        xs.clear_sharding(model[0].weight)
        xs.mark_sharding(model[0].weight, mesh(), (None, "data"))
        torch.testing.assert_close(compiled(batch.global_tensor).cpu(), plain(x), rtol=1e-5, atol=1e-5)


def test_inference(spmd):
    spmd(inference)


class WithGradients(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)
        self.mesh = mesh()

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return xs.mark_sharding_with_gradients(x, self.mesh, ("data", "model"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.hidden(torch.relu(self.first(x))))


class InPlace(WithGradients):
    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        xs.mark_sharding(x, self.mesh, ("data", "model"))
        return x


def shardings_within(whole: bool) -> None:
    torch.manual_seed(0)
    model = (WithGradients if whole else InPlace)().to("xla")
    plain = copy.deepcopy(model).to("cpu")
    plain.hidden = lambda x: x
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="openxla", fullgraph=whole)
    x = torch.randn(8, 8)
    counted = []
    for _ in range(3):
        model.zero_grad()
        compiled(x.to("xla")).square().sum().backward()
        lazy_runtime.sync()
        counted.append((metrics.value("ExecuteComputation"), metrics.value("UncachedCompile")))
    assert counted[-1] == (counted[-2][0] + 1, counted[-2][1])
    assert form(model.second.weight.grad)
    plain(x).square().sum().backward()
    for mine, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.cpu(), expected.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(compiled(x[:5].to("xla")).cpu(), plain(x[:5]))  # rows that the devices cannot share


@pytest.mark.parametrize("whole", [True, False])
def test_shardings_within(spmd, whole):
    spmd(shardings_within, whole)


def eagerly() -> None:
    x = torch.randn(8, 4)
    with eager_mode_context(True):
        y = x.to("xla")
        xs.mark_sharding(y, mesh(), ("data", None))
        turned = y.t()  # a view that nobody has computed
        xs.mark_sharding(turned, mesh(), ("data", None))
        assert (form(y), form(turned)) == (ROWS, ROWS)
        torch.testing.assert_close((turned @ y).cpu(), x.t() @ x)


def test_eagerly(spmd):
    spmd(eagerly)
