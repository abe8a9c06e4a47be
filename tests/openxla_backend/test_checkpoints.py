"""What an activation checkpoint recomputes saves memory in the one program of a training step."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import lazy_runtime
from lazy_runtime import compiler
from tests.blocks import Block

# torch's own, while Dynamo traces: it looks at `.grad` of any tensor, and at all there is of a class
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
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
