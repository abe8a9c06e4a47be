"""`options={"compile_in_background": True}`: torch's own kernels run what XLA is still compiling."""

from __future__ import annotations

import concurrent.futures
import copy
import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed

from lazy_runtime.common import metrics
from openxla_backend import asynchronous_compile
from openxla_backend.compiled import CompiledGraph

IN_BACKGROUND = {"compile_in_background": True}


class Compiler:
    """The background's thread, held back until it is told to go on."""

    def __init__(self) -> None:
        self._may_go = threading.Event()
        self._pool = concurrent.futures.ThreadPoolExecutor(1)
        self._submitted: list[Any] = []

    def submit(self, function: Any, *arguments: Any) -> Any:
        self._submitted.append(self._pool.submit(lambda: self._may_go.wait(60) and function(*arguments)))
        return self._submitted[-1]

    def finish(self) -> None:
        self._may_go.set()
        concurrent.futures.wait(self._submitted)


@pytest.fixture
def compiler(monkeypatch):
    held = Compiler()
    monkeypatch.setattr(asynchronous_compile, "_pool", lambda: held)
    yield held
    held.finish()


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))


def executions() -> int:
    return metrics.value("ExecuteComputation")


@torch.no_grad()
@pytest.mark.parametrize("freezing", [False, True])
def test_inference(compiler, freezing):
    model, x = net().eval(), torch.randn(2, 3, 8, 8)
    compiled = torch.compile(model, backend="openxla", options={**IN_BACKGROUND, "freezing": freezing})
    before = executions()
    for _ in range(2):
        assert torch.equal(compiled(x), model(x))  # by the same kernels
    assert executions() == before
    compiler.finish()
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert executions() > before


def test_training(compiler):
    """A forward pass of either kind has its own backward pass, and the optimizer does not notice."""
    model, reference = net().double(), net().double()
    compiled = torch.compile(model, backend="openxla", options=IN_BACKGROUND)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (model, reference)]
    before = executions()
    for step in range(4):
        if step == 2:
            assert executions() == before
            compiler.finish()
        x = torch.randn(4, 3, 8, 8, dtype=torch.float64)
        losses = [call(x).square().mean() for call in (compiled, reference)]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.testing.assert_close(*losses)
    assert executions() == before + 4  # forward and backward of two steps
    torch.testing.assert_close(model.state_dict(), reference.state_dict())


def test_attention_in_blocks(compiler):
    """Of which the compiled graph has an operator that torch has no kernel for."""
    query = torch.randn(1, 2, 2048, 16)
    attend = nn.functional.scaled_dot_product_attention
    compiled = torch.compile(lambda q: attend(q, q, q), backend="openxla", options=IN_BACKGROUND)
    assert torch.equal(compiled(query), attend(query, query, query))
    compiler.finish()
    torch.testing.assert_close(compiled(query), attend(query, query, query))


@torch.no_grad()
def test_sizes_that_come_with_the_calls(compiler):
    model = net().eval()
    compiled = torch.compile(model, backend="openxla", options=IN_BACKGROUND, dynamic=True)
    for batch in (2, 3):
        x = torch.randn(batch, 3, 8, 8)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
        assert executions() > 0  # at once


def test_what_the_compiler_raises(compiler, monkeypatch):
    def fail(*_: Any) -> None:
        raise RuntimeError("no more room")

    monkeypatch.setattr(CompiledGraph, "prepare", fail)
    compiled = torch.compile(torch.sin, backend="openxla", options=IN_BACKGROUND)
    x = torch.randn(3)
    assert torch.equal(compiled(x), x.sin())
    compiler.finish()
    with pytest.raises(RuntimeError, match="no more room"):
        compiled(x)


def test_tensors_on_xla_are_refused():
    with pytest.raises(BackendCompilerFailed, match="NotImplementedError: compile_in_background is for tensors on the"):
        torch.compile(torch.sin, backend="openxla", options=IN_BACKGROUND)(torch.randn(3, device="xla"))


def test_the_thread_is_waited_for_at_the_end():
    """Without anything held back, and with the compilation that the process ends with."""
    compiled = torch.compile(copy.deepcopy(net()).eval(), backend="openxla", options=IN_BACKGROUND)
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        first = compiled(x)
        asynchronous_compile._pool().submit(int).result(60)
        torch.testing.assert_close(compiled(x), first, rtol=1e-4, atol=1e-5)
