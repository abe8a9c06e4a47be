"""Operators of the user's that write to their arguments, in compiled graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.openxla_backend.helpers import compiled


@torch.library.custom_op("test_written::add_", mutates_args={"x"})
def add_(x: torch.Tensor, number: float) -> None:
    x.add_(number)


@torch.library.custom_op("test_written::exchange", mutates_args={"x", "ys"})
def exchange(x: torch.Tensor, ys: list[torch.Tensor], factor: float = 2.0) -> torch.Tensor:
    """Writes to all of them, and returns something too."""
    before = x.clone()
    x.copy_(ys[0] * factor)
    for y in ys:
        y.copy_(before)
    return before.sum()


@exchange.register_fake
def _(x: torch.Tensor, ys: list[torch.Tensor], factor: float = 2.0) -> torch.Tensor:
    return x.new_empty(())


def on_a_result(x: torch.Tensor) -> Any:
    y = x * 2
    add_(y, 3.0)
    return y + 1


def on_an_argument(x: torch.Tensor) -> Any:
    add_(x, 3.0)
    return x * 2


def on_a_view(x: torch.Tensor) -> Any:
    add_(x[1:], 1.0)
    add_(x.T[0], 0.5)
    return x + 0


def on_several(x: torch.Tensor) -> Any:
    ys = [x + 1, x + 2]
    total = exchange(x, ys, factor=3.0)
    return total, ys, x.clone()


def twice_alike(x: torch.Tensor) -> Any:
    add_(x, 1.0)
    add_(x, 1.0)
    add_(x, 2.0)
    return x.sum()


@pytest.mark.parametrize("device", ["xla", "cpu"])
@pytest.mark.parametrize("f", [on_a_result, on_an_argument, on_a_view, on_several, twice_alike])
def test_values(f, device):
    torch._dynamo.reset()
    fast = compiled(f, fullgraph=True)
    mine, theirs = torch.arange(6.0).reshape(3, 2).to(device), torch.arange(6.0).reshape(3, 2)
    for _ in range(2):
        found, wanted = (torch.utils._pytree.tree_leaves(each) for each in (fast(mine), f(theirs)))
        for got, expected in zip([*found, mine], [*wanted, theirs], strict=True):
            torch.testing.assert_close(got.cpu(), expected)
