"""Torch's control flow outside of compiled functions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import lazy_runtime

X = torch.arange(12.0).reshape(3, 4) / 7


def cond(x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 5, lambda x: x.sin(), lambda x: x * 2, (x,))


def loop(x: torch.Tensor) -> Any:
    start = torch.zeros((), dtype=torch.int64, device=x.device), x
    return while_loop(lambda n, x: x.sum() < 100, lambda n, x: (n + 1, x * 1.5), start)


def scanned(x: torch.Tensor) -> Any:
    return scan(lambda c, x: (c + x, c * x), torch.ones(4, device=x.device), x, dim=0)


def mapped(x: torch.Tensor) -> Any:
    return torch_map(lambda x: x.cumsum(0), x)


@pytest.fixture(params=[False, True], ids=["lazy", "eager"])
def mode(request):
    lazy_runtime.experimental.eager_mode(request.param)
    yield
    lazy_runtime.experimental.eager_mode(False)


@pytest.mark.parametrize("f", [cond, loop, scanned, mapped])
@pytest.mark.parametrize("scale", [1, -1])
def test_values(mode, f: Callable[..., Any], scale: int):
    if f is loop and scale < 0:
        pytest.skip("it would never end")
    torch._dynamo.reset()
    found, wanted = (torch.utils._pytree.tree_leaves(f(x)) for x in (X.to("xla") * scale, X * scale))
    for got, expected in zip(found, wanted, strict=True):
        assert got.device.type == "xla"
        torch.testing.assert_close(got.cpu(), expected)


class Choosing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.mean() > 0.5, lambda x: self.one(x).tanh(), lambda x: self.other(x) * 2, (x,))


def test_training():
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Choosing()
    moved = copy.deepcopy(model).to("xla")
    for x in (X, X - 1):
        model(x).square().mean().backward()
        moved(x.to("xla")).square().mean().backward()
    for got, wanted in zip(moved.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(got.grad.cpu(), wanted.grad)
