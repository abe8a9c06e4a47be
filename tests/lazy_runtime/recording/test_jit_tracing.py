"""`torch.jit.trace` of modules on xla: the same operators as on the CPU, for other inputs too."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.recurrent import Recurrent

# Torch 2.13 deprecates the tracer, which people use, and warns of each number that it keeps.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]


class Residual(nn.Module):
    """The parts of a residual network."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.block = nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1)
        )
        self.head = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(self.first(x), 2)
        x = nn.functional.relu_(x + self.block(x))
        return self.head(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.attention(x, x, x, need_weights=False)
        return y.reshape(x.shape[0], -1, 4)


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, padding="same"), (2, 3, 8)),
    "conv2d": (lambda: nn.Conv2d(4, 4, 3, groups=2, padding_mode="circular", padding=1), (2, 4, 8, 8)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), (2, 2, 4, 4, 4)),
    "conv_transpose2d": (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, output_padding=1), (2, 3, 5, 5)),
    "batch_norm": (lambda: nn.BatchNorm2d(3), (2, 3, 4, 4)),
    "linear": (lambda: nn.Linear(8, 4), (2, 8)),
    "attention": (Attention, (2, 5, 8)),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (2, 5, 8)),
    "recurrent": (Recurrent, (5, 2, 8)),
    "residual": (Residual, (2, 3, 16, 16)),
}


def _operators(traced: Any) -> list[str]:
    return [node.kind() for node in traced.inlined_graph.nodes() if node.kind().startswith("aten::")]


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", CASES)
def test_trace(name: str, training: bool):
    make, shape = CASES[name]
    model = make().train(training).double()
    on_xla = copy.deepcopy(model).to("xla")
    x, other = torch.randn(2, *shape, dtype=torch.float64)
    wanted = torch.jit.trace(model, x, check_trace=False)
    traced = torch.jit.trace(on_xla, x.to("xla"), check_trace=False)
    assert _operators(traced) == _operators(wanted)
    found, expected = traced(other.to("xla")), wanted(other)
    torch.testing.assert_close(found.cpu(), expected)
    found.square().sum().backward()
    expected.square().sum().backward()
    for one, two in zip(on_xla.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one.grad.cpu(), two.grad)
    for one, two in zip(on_xla.buffers(), model.buffers(), strict=True):
        torch.testing.assert_close(one.cpu(), two)


FACTORIES: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: torch.zeros(x.shape[0], 4, device=x.device),
    lambda x: torch.full((x.shape[0], 1), 2.0, device=x.device),
    lambda x: torch.arange(x.shape[0], device=x.device)[:, None],
    lambda x: torch.eye(x.shape[0], 4, device=x.device),
    lambda x: x.new_ones(x.shape[0], 4),
    torch.ones_like,
    lambda x: torch.full_like(x, 3),
    lambda x: torch.zeros_like(x).add_(x.shape[0]),
    lambda x: torch.rand_like(x) * 0,
    lambda x: torch.empty(x.shape[0], 4, device=x.device).copy_(x),
]


@pytest.mark.parametrize("factory", FACTORIES)
def test_factories_of_sizes_of_the_input(factory: Callable[[torch.Tensor], torch.Tensor]):
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * factory(x)

    traced = torch.jit.trace(function, torch.randn(2, 4, device="xla"), check_trace=False)
    other = torch.randn(3, 4)
    torch.testing.assert_close(traced(other.to("xla")).cpu(), function(other))


def test_check_of_trace():
    """Torch runs the trace again and compares it with the module, in two ways."""
    model = Residual().eval().to("xla")
    torch.jit.trace(model, torch.randn(2, 3, 16, 16, device="xla"), check_trace=True)


def test_save_and_load():
    model = Residual().eval()
    x = torch.randn(2, 3, 16, 16)
    traced = torch.jit.trace(copy.deepcopy(model).to("xla"), x.to("xla"))
    memory = io.BytesIO()
    torch.jit.save(traced, memory)
    memory.seek(0)
    loaded = torch.jit.load(memory, map_location="cpu")  # torch's C++ reads no archive onto an xla device
    torch.testing.assert_close(loaded(x), model(x))
    torch.testing.assert_close(loaded.to("xla")(x.to("xla")).cpu(), model(x), rtol=1e-4, atol=1e-5)


def test_traces_of_cpu_tensors_stay_torchs():
    torch.ones(1, device="xla")
    model = nn.Conv2d(3, 4, 3)
    with torch.backends.cudnn.flags(enabled=False):
        traced = torch.jit.trace(model, torch.randn(2, 3, 8, 8))
    assert _operators(traced) == ["aten::_convolution"]
    x = torch.randn(1, 3, 5, 5)
    torch.testing.assert_close(traced(x), model(x))
