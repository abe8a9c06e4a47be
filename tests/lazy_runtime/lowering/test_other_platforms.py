"""What is lowered for GPUs and TPUs: operators of XLA's alone. They run on XLA's CPU here, with torch's results."""

import pytest
import torch
from torch import nn

import lazy_runtime
from lazy_runtime.compilation import compiler
from lazy_runtime.lowering import aten_bridge
from lazy_runtime.platform import xla_devices

functional = nn.functional


def _refuse(name, *rest):
    raise AssertionError(f"{name} is a kernel of the CPU's")


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    """Operators are lowered as for a GPU."""
    compiler.clear()
    torch._dynamo.reset()
    monkeypatch.setattr(xla_devices.get(lazy_runtime.device()), "platform", "gpu")
    monkeypatch.setattr(aten_bridge, "call", _refuse)
    yield
    compiler.clear()
    torch._dynamo.reset()


class _Joined(nn.Module):
    """Two branches, joined over the channels, as in a SqueezeNet."""

    def __init__(self):
        super().__init__()
        self.one, self.three = nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x):
        return torch.cat([self.one(x).relu(), self.three(x).relu()], 1)


class _Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(16, 48)

    def forward(self, x):
        query, key, value = self.project(x.flatten(2).transpose(1, 2)).chunk(3, -1)
        return functional.scaled_dot_product_attention(query[:, None], key[:, None], value[:, None])


MODELS = {
    "Winograd's convolution": lambda: nn.Conv2d(16, 32, 3, padding=1),
    "strided": lambda: nn.Conv2d(16, 24, 3, stride=2, padding=1),
    "strided 1x1": lambda: nn.Conv2d(16, 24, 1, stride=2),
    "padded 1x1": lambda: nn.Conv2d(16, 24, 1, padding=1),
    "1x1": lambda: nn.Conv2d(16, 24, 1),
    "depthwise": lambda: nn.Conv2d(16, 16, 3, padding=1, groups=16),
    "strided depthwise": lambda: nn.Conv2d(16, 16, 5, padding=2, stride=2, groups=16),
    "dilated depthwise": lambda: nn.Conv2d(16, 16, (3, 2), dilation=2, groups=16, bias=False),
    "grouped": lambda: nn.Conv2d(16, 32, 3, groups=4),
    "transposed": lambda: nn.ConvTranspose2d(16, 8, 3, stride=2, output_padding=1),
    "norm and pool": lambda: nn.Sequential(
        nn.Conv2d(16, 32, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)
    ),
    "layer norm": lambda: nn.Sequential(nn.LayerNorm([16, 20, 20]), nn.AvgPool2d(2)),
    "joined": _Joined,
    "attention": _Attention,
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(6400, 32), nn.GELU(), nn.Linear(32, 512)),
}


def _relative(actual, expected):
    return ((actual.detach().cpu() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("way", ["lazy", "openxla"])
@pytest.mark.parametrize("name", MODELS)
def test_outputs_and_gradients(name, way):
    torch.manual_seed(0)
    images = torch.randn(4, 16, 20, 20)
    results = {}
    for device in ("cpu", "xla"):
        torch.manual_seed(0)
        model = MODELS[name]().to(device)
        x = images.clone().to(device).requires_grad_()
        run = torch.compile(model, backend="openxla") if (device, way) == ("xla", "openxla") else model
        y = run(x)
        y.backward(torch.linspace(-1, 1, y.numel()).view(y.shape).to(device))
        results[device] = [y, x.grad, *(parameter.grad for parameter in model.parameters())]
    for actual, expected in zip(results["xla"], results["cpu"], strict=True):
        assert _relative(actual, expected.detach()) < 1e-5


@pytest.mark.parametrize("name", ["Winograd's convolution", "strided 1x1", "depthwise", "joined", "linear"])
def test_with_kept_parameters(name):
    torch.manual_seed(0)
    model, images = MODELS[name]().eval(), torch.randn(4, 16, 20, 20)
    with torch.no_grad():
        expected = model(images)
        compiled = torch.compile(model.to("xla"), backend="openxla")
        for _ in range(2):
            assert _relative(compiled(images.to("xla")), expected) < 1e-5
