"""The ten models: a training step is one execution and compiles nothing, and its losses are eager's.

All of it takes most of an hour and is marked `long` (`make test-models`), but for one model with one optimizer.
"""

from __future__ import annotations

import copy
import functools
import gc
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import lazy_runtime
from benchmarks import models
from lazy_runtime.compilation import compiler
from tests.openxla_backend.helpers import counting

# torch's own, while Dynamo traces: it looks at `.grad` of any tensor, and at all there is of a class
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]

WORK = ("ExecuteComputation", "UncachedCompile", "DynamoExtractCompiledGraph")
STEPS = 5

#: batch and image. On 2 images of 64x64 resnet50's batch norms see 8 values each, and eager's fifth loss is 1.7e-6 from
#: that of eager in channels_last; here it is 2e-9.
SIZES = (4, 96)

OPTIMIZERS = {
    "sgd": functools.partial(torch.optim.SGD, lr=1e-3, momentum=0.9),
    "adamw": functools.partial(torch.optim.AdamW, lr=1e-4),
}
FORMS = ("model", "step", "lazy")
ONE = {"ExecuteComputation": 1, "UncachedCompile": 0, "DynamoExtractCompiledGraph": 0}

CASES = [
    pytest.param(*case, marks=[] if case[0] == "squeezenet1_1" and case[1] == "sgd" else pytest.mark.long)
    for case in itertools.product(models.PUBLISHED, OPTIMIZERS, FORMS)
]


@pytest.fixture(autouse=True)
def double():
    # a compiled AdamW counts its steps in the default dtype, on any accelerator
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
    torch.compiler.reset()
    compiler.clear()
    gc.collect()
    torch.xla.empty_cache()  # what one model leaves in pieces is of no use to the next: together 22 GB


def _model(name: str) -> torch.nn.Module:
    return models.without_dropout(models.build(name)).train()


def _step(model: Callable[..., Any], optimizer: torch.optim.Optimizer) -> Callable[..., torch.Tensor]:
    def step(*inputs: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(*inputs).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@functools.lru_cache(maxsize=1)
def _eager(name: str, optimizer: str) -> list[float]:
    model = _model(name)
    step = _step(model, OPTIMIZERS[optimizer](model.parameters()))
    inputs = models.example(name, *SIZES)
    return [step(*inputs).item() for _ in range(STEPS)]


@pytest.mark.parametrize(("name", "optimizer", "form"), CASES)
def test_one_execution_per_step(name, optimizer, form):
    expected = _eager(name, optimizer)
    model = copy.deepcopy(_model(name)).to("xla")
    made = OPTIMIZERS[optimizer](model.parameters())
    step = _step(torch.compile(model, backend="openxla") if form == "model" else model, made)
    if form == "step":
        step = torch.compile(step, backend="openxla")
    elif form == "lazy":
        step = lazy_runtime.compile(step, trace_after=0)
    inputs = [tensor.to("xla") for tensor in models.example(name, *SIZES)]
    losses: list[float] = []
    for number in range(STEPS):
        with counting(*WORK) as counts:
            losses.append(step(*inputs).item())
        if number >= 2:  # the optimizer makes its state in the first step
            assert counts == ONE
    torch.testing.assert_close(losses, expected, rtol=1e-6, atol=0.0)
    unread = []
    for number in range(4):
        with counting(*WORK) as counts:
            unread.append(step(*inputs))
        if number >= 1:  # one that nobody reads may be executed when the next one begins
            assert counts == ONE
    assert all(loss.isfinite() for loss in unread)
