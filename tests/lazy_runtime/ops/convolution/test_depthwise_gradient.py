"""The gradient of the filters of convolutions of each channel by itself, against torch's own, in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lazy_runtime.common import config
from lazy_runtime.debug import graphs
from lazy_runtime.ops.convolution import depthwise_gradient
from tests import native_part

pytestmark = native_part.need_kernel(depthwise_gradient._is_built)


def _images(*size: int) -> torch.Tensor:
    return torch.randn(size).contiguous(memory_format=torch.channels_last)


def _expected(gradient, image, side, stride, padding):
    filters = torch.zeros(image.shape[1], 1, side, side, dtype=torch.float64, requires_grad=True)
    convolved = nn.functional.conv2d(image.double(), filters, None, stride, padding, groups=image.shape[1])
    return torch.autograd.grad(convolved, filters, gradient.double())[0]


def _result_size(size, side, stride, padding):
    return [(n + 2 * p - side) // stride + 1 for n, p in zip(size, padding, strict=True)]


@pytest.mark.parametrize("side", [5, 7])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(
    ("batch", "channels", "size", "padding"),
    [
        (1, 16, (7, 7), (0, 0)),
        (2, 40, (9, 14), (2, 3)),
        (3, 17, (20, 8), (0, 4)),
        (11, 48, (7, 7), (3, 3)),
        (4, 96, (28, 28), (2, 2)),  # enough to be divided among threads
    ],
)
def test_kernel(side, stride, batch, channels, size, padding):
    image = _images(batch, channels, *size)
    gradient = _images(batch, channels, *_result_size(size, side, stride, padding))
    found = torch.ops.lazy_runtime_kernels.depthwise_gradient(gradient, image, side, stride, padding)
    expected = _expected(gradient, image, side, stride, padding)
    error = found.permute(2, 0, 1)[:, None].double() - expected  # of a sum, in which large numbers may cancel out
    assert error.norm() <= 1e-6 * expected.norm()


def test_kernel_refuses_what_does_not_fit():
    kernel = torch.ops.lazy_runtime_kernels.depthwise_gradient
    for side, channels, given in ((3, 16, 7), (5, 8, 5), (5, 16, 6)):
        with pytest.raises(RuntimeError, match="gradients of shape"):
            kernel(_images(1, channels, given, given), _images(1, channels, 9, 9), side, 1, [0, 0])


#: and whether the kernel takes it
MODULES = [
    (lambda: nn.Conv2d(32, 32, 5, padding=2, groups=32), True),
    (lambda: nn.Conv2d(32, 32, 7, stride=2, padding=(3, 1), groups=32, bias=False), True),
    (lambda: nn.Conv2d(32, 32, 5, padding=2, dilation=2, groups=32), False),
    (lambda: nn.Conv2d(32, 32, 5, stride=(1, 2), groups=32), False),
    (lambda: nn.Conv2d(32, 64, 5, groups=32), False),
    (lambda: nn.Conv2d(8, 8, 5, groups=8), False),
    (lambda: nn.Conv2d(32, 32, (5, 3), groups=32), False),
    (lambda: nn.Conv2d(32, 32, 3, groups=32), False),
    (lambda: nn.ConvTranspose2d(32, 32, 5, groups=32), False),
]


@pytest.mark.parametrize(("make", "is_taken"), MODULES)
@pytest.mark.parametrize("wants_image", [True, False])
def test_a_module_trains_as_on_the_cpu(make, is_taken, wants_image):
    module = make()
    image = torch.randn(2, module.in_channels, 14, 13)

    def train(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
        trained = copy.deepcopy(module).to(device, dtype)
        given = image.to(device, dtype).requires_grad_(wants_image)
        trained(given).square().sum().backward()
        made = [each.grad for each in (given, *trained.parameters()) if each.grad is not None]
        if device == "xla":
            assert ("depthwise_gradient" in graphs.stablehlo(made)) is is_taken
        return [each.cpu().double() for each in made]

    for ours, wanted in zip(train("xla", torch.float32), train("cpu", torch.float64), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-4)


def test_it_can_be_turned_off(monkeypatch):
    monkeypatch.setattr(config, "direct_convolutions", lambda: False)
    module = nn.Conv2d(32, 32, 5, groups=32).to("xla")
    module(torch.randn(2, 32, 9, 11, device="xla")).sum().backward()
    assert "depthwise_gradient" not in graphs.stablehlo([module.weight.grad])
