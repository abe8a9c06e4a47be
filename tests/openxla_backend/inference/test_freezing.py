"""`options={"freezing": True}`: inference on CPU tensors whose parameters are taken as they are at the first call."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lazy_runtime.common import metrics

FREEZING = {"freezing": True}


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, groups=2),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(128 * 16, 1000),
    )
    model(torch.randn(4, 3, 24, 24))  # statistics
    return model.eval()


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_results(model, dtype):
    model, x = model.to(dtype), torch.randn(4, 3, 24, 24).to(dtype)
    compiled = torch.compile(copy.deepcopy(model), backend="openxla", options=FREEZING)
    for _ in range(2):
        found = compiled(x)
    assert found.device.type == "cpu"
    # up to 2,048 products in another order; of bfloat16, of factors that were rounded to 8 bits after other sums
    rtol, atol = (2e-2, 2e-3) if dtype == torch.bfloat16 else (1e-4, 1e-4)
    torch.testing.assert_close(found, model(x), rtol=rtol, atol=atol)


@torch.no_grad()
@pytest.mark.parametrize("dynamic", [None, True])
def test_one_program_runs_in_a_call(model, dynamic):
    compiled = torch.compile(model, backend="openxla", options=FREEZING, dynamic=dynamic)
    x = torch.randn(4, 3, 24, 24)
    compiled(x)
    before = metrics.value("ExecuteComputation")
    expected = model(x)
    torch.testing.assert_close(compiled(x), expected, rtol=1e-4, atol=1e-4)
    assert metrics.value("ExecuteComputation") == before + 1


@torch.no_grad()
def test_parameters_are_what_they_were_at_the_first_call(model):
    frozen = torch.compile(model, backend="openxla", options=FREEZING)
    x = torch.randn(4, 3, 24, 24)
    before = frozen(x)
    model[-1].weight.mul_(2)
    model[3].weight.mul_(2)
    assert torch.equal(frozen(x), before)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(model, backend="openxla")(x), model(x), rtol=1e-4, atol=1e-4)


def test_a_training_graph_does_not_freeze(model):
    compiled = torch.compile(model.train(), backend="openxla", options=FREEZING)
    x = torch.randn(4, 3, 24, 24)
    compiled(x).sum().backward()
    with torch.no_grad():
        model[-1].weight.zero_()
        model[-1].bias.fill_(3)
    assert torch.equal(compiled(x), torch.full((4, 1000), 3.0))


@torch.no_grad()
def test_on_xla_a_write_is_seen(model):
    compiled = torch.compile(model.to("xla"), backend="openxla", options=FREEZING)
    x = torch.randn(4, 3, 24, 24).to("xla")
    compiled(x)
    model[-1].weight.zero_()
    model[-1].bias.fill_(3)
    assert torch.equal(compiled(x).cpu(), torch.full((4, 1000), 3.0))
