"""Activation checkpoints on lazy tensors."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import lazy_runtime
from lazy_runtime.compilation import compiler, linearization
from tests.blocks import Block


def _gradients(device: str, **options: bool) -> tuple[int, list[torch.Tensor]]:
    """Bytes of temporary memory of the program of forward and backward pass, and the gradients."""
    compiler.clear()
    torch.manual_seed(0)
    blocks = nn.Sequential(*(Block() for _ in range(8))).to(device)
    x = torch.randn(1024, 16).to(device).requires_grad_()
    lazy_runtime.sync(wait=True)
    y = x
    for block in blocks:
        y = checkpoint(block, y, **options) if options else block(y)
    y.square().mean().backward()
    gradients = [parameter.grad.cpu() for parameter in blocks.parameters() if parameter.grad is not None]
    sizes = [each.compiled.memory_analysis() for each in compiler._executables.values()]
    return max((size.temp_size_in_bytes for size in sizes if size is not None), default=0), gradients


@pytest.mark.parametrize("reentrant", [False, True])
def test_memory_and_results(reentrant):
    plain, _ = _gradients("xla")
    saving, found = _gradients("xla", use_reentrant=reentrant)
    assert saving < plain / 2
    torch.testing.assert_close(found, _gradients("cpu")[1])


@pytest.mark.parametrize("reentrant", [False, True])
def test_dropout_is_the_same_when_recomputed(reentrant):
    x = torch.ones(64, device="xla", requires_grad=True)
    y = checkpoint(lambda x: nn.functional.dropout(x * 2, 0.5), x, use_reentrant=reentrant)
    (y * y).sum().backward()
    torch.testing.assert_close(x.grad, 8 * y.detach())  # y is 4 x where it was kept, and x is 1


def test_double_backward():
    x = torch.linspace(0.1, 1, 5)
    grads = []
    for device in ("cpu", "xla"):
        leaf = x.to(device).requires_grad_()
        y = checkpoint(lambda x: torch.sin(x) * x.exp(), leaf, use_reentrant=False)
        (first,) = torch.autograd.grad(y.sum(), leaf, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), leaf)
        grads.append((first.detach().cpu(), second.cpu()))
    torch.testing.assert_close(grads[1], grads[0])


def test_another_thread_syncs_during_a_recomputation(monkeypatch):
    """What has passed the barrier is kept for the operators that are still to come."""

    def never(pending):
        raise AssertionError(f"a value of the barrier was left out: {[node.call.name for node in pending]}")

    monkeypatch.setattr(linearization, "_with_missing", never)

    def function(x):
        y = x * x
        thread = threading.Thread(target=lazy_runtime.sync)
        thread.start()
        thread.join()
        return (y + x) * x

    x = torch.linspace(0.1, 1, 5, device="xla", requires_grad=True)
    checkpoint(function, x, use_reentrant=False).sum().backward()
    torch.testing.assert_close(x.grad, 3 * x.detach() ** 2 + 2 * x.detach())
