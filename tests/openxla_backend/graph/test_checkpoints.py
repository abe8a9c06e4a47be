"""What an activation checkpoint recomputes saves memory in the one program of a training step."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import lazy_runtime
from lazy_runtime.compilation import compiler
from tests.blocks import Block
from tests.openxla_backend.helpers import compiled

# torch's own, while Dynamo traces: it looks at `.grad` of any tensor, and at all there is of a class
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
]


class Net(nn.Module):
    def __init__(self, recomputes: bool):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(8))
        self.recomputes = recomputes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recomputes else block(x)
        return x


def _step(form: str, recomputes: bool) -> tuple[int, list[torch.Tensor]]:
    """Bytes of temporary memory of the step's program, and the parameters after three steps."""
    compiler.clear()
    torch.manual_seed(0)
    model = Net(recomputes).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    call = torch.compile(model, backend="openxla") if form == "model" else model

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        call(x).square().mean().backward()
        optimizer.step()

    if form == "step":
        step = torch.compile(step, backend="openxla")
    x = torch.randn(1024, 16).to("xla")
    for _ in range(3):
        step(x)
        lazy_runtime.sync()
    parameters = [parameter.detach().cpu() for parameter in model.parameters()]
    sizes = [each.compiled.memory_analysis() for each in compiler._executables.values()]
    return max(size.temp_size_in_bytes for size in sizes if size is not None), parameters


@pytest.mark.parametrize("form", ["model", "step"])
def test_memory_and_results(form):
    plain, expected = _step(form, False)
    saving, found = _step(form, True)
    assert saving < plain / 2
    torch.testing.assert_close(found, expected)


def _dropouts(x):
    for _ in range(3):
        x = torch.nn.functional.dropout(x * 1.1, 0.3).abs()
    return x


def _dropouts_between_products(x):
    weight = torch.linspace(0.0, 1.0, 64, device=x.device).view(8, 8)
    for _ in range(3):
        x = torch.nn.functional.dropout(x @ weight, 0.5).abs()
    return x


def _own_masks(x):
    for _ in range(2):
        x = (x * (torch.rand_like(x) > 0.5) * torch.bernoulli(torch.full_like(x, 0.5))).sum(-1, keepdim=True) + x * 2
    return x


@pytest.mark.parametrize("budget", [0.5, 0.0])
@pytest.mark.parametrize("function", [_dropouts, _dropouts_between_products, _own_masks])
def test_what_a_memory_budget_recomputes_has_the_first_random_numbers(function, budget, device):
    """The functions are linear along a ray, so that `gradient · x` is their value, if both have one mask."""
    fast = compiled(function)
    x = torch.rand(16, 8).add(0.5).to(device).requires_grad_()
    with torch._functorch.config.patch(activation_memory_budget=budget):
        for _ in range(2):
            total = fast(x).sum()
            (gradient,) = torch.autograd.grad(total, x)
            torch.testing.assert_close((gradient * x).sum(), total, rtol=1e-4, atol=1e-4)
