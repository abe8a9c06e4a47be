"""Graphs in which a size depends on data give what torch gives, and are counted."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tests.openxla_backend.helpers import counting

MASK = [True, False, True, True, False]


def _fill(x, index, value, mask, rows):
    return x.index_fill(0, index, value)


def _put(x, index, value, mask, rows):
    return x.index_put((mask,), rows)


def _put_in_place(x, index, value, mask, rows):
    y = x * 2
    y[mask] = rows
    return y.sin()


def _put_within_a_checkpoint(x, index, value, mask, rows):
    return checkpoint(lambda x: _put_in_place(x.cos(), index, value, mask, rows).tanh(), x, use_reentrant=False)


def _arguments(device: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    made = [torch.randn(5, 4), torch.tensor([1, 3]), torch.tensor(2.0), torch.tensor(MASK), torch.randn(3, 4)]
    return [x.to(device).requires_grad_(x.is_floating_point()) for x in made]


def _results(function, device: str) -> list[torch.Tensor | None]:
    arguments = _arguments(device)
    result = function(*arguments)
    (result * torch.arange(20.0, device=device).reshape(5, 4)).sum().backward()
    found = [result.detach(), *[x.grad for x in arguments]]
    return [None if x is None else x.cpu() for x in found]


@pytest.mark.parametrize("device", ["xla", "cpu"])
@pytest.mark.parametrize("function", [_fill, _put, _put_in_place, _put_within_a_checkpoint])
def test_backward_graphs(function, device):
    expected = _results(function, "cpu")
    compiled = torch.compile(function, backend="openxla", fullgraph=True)
    with counting("InterpretedGraph") as grown:
        for _ in range(2):
            torch.testing.assert_close(_results(compiled, device), expected)
    assert grown == {"InterpretedGraph": 2}


@pytest.mark.parametrize("device", ["xla", "cpu"])
def test_forward_graphs_that_dynamo_was_asked_to_keep_whole(device):
    def function(x):
        return torch.nonzero(x > 0) * 2

    x = torch.tensor([[1.0, -1.0], [-2.0, 3.0]])
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(function, backend="openxla", fullgraph=True)
        for given in (x, -x, torch.zeros(2, 2)):
            assert torch.equal(compiled(given.to(device)).cpu(), function(given))


def test_a_gradient_with_a_symbolic_size_still_holds_back_recomputation():
    def function(x, w):
        return checkpoint(lambda x: torch.relu(x @ w).sin() @ w.T, x, use_reentrant=False)

    compiled = torch.compile(function, backend="openxla", dynamic=True)
    for rows in (3, 5):
        x = torch.linspace(-1, 1, rows * 4).reshape(rows, 4)
        w = torch.linspace(-1, 1, 32).reshape(4, 8)
        grads = []
        for call, device in ((function, "cpu"), (compiled, "xla")):
            leaf = x.clone().to(device).requires_grad_()
            call(leaf, w.to(device)).sum().backward()
            assert leaf.grad is not None
            grads.append(leaf.grad.cpu())
        torch.testing.assert_close(*grads)
