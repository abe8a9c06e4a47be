"""The gradient of filters of 3x3 by Winograd's algorithm, against torch's own, in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lazy_runtime.common import config
from lazy_runtime.debug import graphs
from lazy_runtime.ops.convolution import winograd
from tests import native_part

pytestmark = native_part.need_kernel(winograd._is_gradient_built)


def _images(*size: int) -> torch.Tensor:
    return torch.randn(size).contiguous(memory_format=torch.channels_last)


def _gradient(gradient, image, padding):
    return torch.ops.lazy_runtime_kernels.winograd_gradient(gradient, image, padding)


def _by_definition(gradient, image, padding):
    filters = torch.zeros(gradient.shape[1], image.shape[1], 3, 3, dtype=image.dtype, requires_grad=True)
    return torch.autograd.grad(nn.functional.conv2d(image, filters, padding=padding), filters, gradient)[0]


@pytest.mark.parametrize("padding", [(0, 0), (1, 1), (2, 1), (0, 3)], ids=str)
@pytest.mark.parametrize("channels", [(16, 16), (32, 48), (64, 80), (16, 192), (256, 64)], ids=str)
@pytest.mark.parametrize("size", [(1, 3, 4), (2, 9, 7), (3, 6, 18), (1, 56, 57)], ids=str)
def test_results(size, channels, padding):
    torch.manual_seed(0)
    batch, height, width = size
    image = _images(batch, channels[0], height, width)
    gradient = _images(batch, channels[1], height + 2 * padding[0] - 2, width + 2 * padding[1] - 2)
    found = _gradient(gradient, image, padding)
    assert found.is_contiguous()
    expected = _by_definition(gradient.double(), image.double(), padding)
    assert (found - expected).norm() <= 8e-6 * expected.norm()


def test_more_tiles_than_are_transformed_at_a_time():
    torch.manual_seed(0)
    image, gradient = _images(2, 64, 80, 84), _images(2, 64, 80, 84)  # more than 2 ** 21 numbers
    expected = _by_definition(gradient.double(), image.double(), (1, 1))
    assert (_gradient(gradient, image, (1, 1)) - expected).norm() <= 8e-6 * expected.norm()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads(threads):
    torch.manual_seed(0)
    image, gradient, before = _images(2, 32, 40, 40), _images(2, 48, 40, 40), torch.get_num_threads()
    expected = _by_definition(gradient.double(), image.double(), (1, 1))
    torch.set_num_threads(threads)
    try:
        assert (_gradient(gradient, image, (1, 1)) - expected).norm() <= 8e-6 * expected.norm()
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
@pytest.mark.parametrize("of_image", [True, False])
def test_what_is_not_finite_is_by_the_definition(value, of_image):
    torch.manual_seed(0)
    image, gradient = _images(2, 32, 9, 11), _images(2, 16, 9, 11)
    (image if of_image else gradient)[1, 3, 0, 4] = value
    expected = _by_definition(gradient, image, (1, 1))
    torch.testing.assert_close(_gradient(gradient, image, (1, 1)), expected, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize(
    ("gradient", "image"),
    [((1, 16, 8, 8), (1, 16, 9, 8)), ((2, 16, 8, 8), (1, 16, 8, 8)), ((1, 8, 8, 8), (1, 16, 8, 8))],
    ids=["size", "batch", "channels"],
)
def test_what_does_not_fit_is_refused(gradient, image):
    with pytest.raises(RuntimeError, match="gradients of shape"):
        _gradient(_images(*gradient), _images(*image), (1, 1))


#: and whether the kernel takes it
MODULES = [
    (lambda: nn.Conv2d(32, 64, 3, padding=1), True),
    (lambda: nn.Conv2d(32, 32, 3, padding=(0, 2), bias=False), True),
    (lambda: nn.Conv2d(32, 32, 3, stride=2), False),
    (lambda: nn.Conv2d(32, 32, 3, dilation=2), False),
    (lambda: nn.Conv2d(32, 32, 3, groups=2), False),
    (lambda: nn.Conv2d(32, 40, 3), False),
    (lambda: nn.Conv2d(32, 16, 3), False),
    (lambda: nn.Conv2d(32, 32, (3, 1)), False),
    (lambda: nn.ConvTranspose2d(32, 32, 3), False),
]


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() != "AVX512", reason="vectors are not of 512 bits")
class TestOnXla:
    @pytest.mark.parametrize(("make", "is_taken"), MODULES)
    def test_a_module_trains_as_on_the_cpu(self, make, is_taken):
        torch.manual_seed(0)
        module = make()
        image = torch.randn(4, 32, 21, 24)

        def train(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
            trained = copy.deepcopy(module).to(device, dtype)
            given = image.to(device, dtype).requires_grad_()
            trained(given).square().sum().backward()
            made = [given.grad, *(parameter.grad for parameter in trained.parameters())]
            if device == "xla":
                assert ("winograd_gradient" in graphs.stablehlo(made)) is is_taken
            return [each.cpu().double() for each in made]

        for ours, wanted in zip(train("xla", torch.float32), train("cpu", torch.float64), strict=True):
            assert (ours - wanted).norm() <= 1e-5 * wanted.norm()

    def test_few_tiles_stay_with_torchs(self):
        module = nn.Conv2d(32, 32, 3, padding=1).to("xla")
        module(torch.randn(1, 32, 8, 8, device="xla")).sum().backward()
        assert "winograd_gradient" not in graphs.stablehlo([module.weight.grad])

    def test_it_can_be_turned_off(self, monkeypatch):
        monkeypatch.setattr(config, "winograd", lambda: False)
        module = nn.Conv2d(32, 32, 3, padding=1).to("xla")
        module(torch.randn(4, 32, 24, 24, device="xla")).sum().backward()
        assert "winograd_gradient" not in graphs.stablehlo([module.weight.grad])
