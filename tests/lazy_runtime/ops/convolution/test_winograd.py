"""Winograd's convolutions against torch's own, in float64."""

from __future__ import annotations

import pytest
import torch

from lazy_runtime.ops.convolution import winograd
from lazy_runtime.ops.convolution.convolution_problem import ConvolutionProblem, Geometry
from tests import native_part

_SIZE = [4, 64, 56, 56]
_GEOMETRY = ([1, 1], [1, 1], [1, 1], 1)


def _pays(filters: torch.Tensor, size=_SIZE, geometry=_GEOMETRY, platform: str = "cpu", kept=True) -> bool:
    stride, padding, dilation, groups = geometry
    where = Geometry.of(2, stride, padding, dilation, False, [0, 0], groups)
    dtype = str(filters.dtype).removeprefix("torch.")
    problem = ConvolutionProblem(
        tuple(size), tuple(filters.shape), where, dtype, platform, dtype, dtype, kept_on="xla" if kept else ""
    )
    return bool(winograd.accepts(problem))


pytestmark = native_part.need_kernel(winograd._is_built)


def _images(*size: int) -> torch.Tensor:
    return torch.randn(size).contiguous(memory_format=torch.channels_last)


def _filters(out: int, channels: int) -> torch.Tensor:
    return torch.randn(out, channels, 3, 3) / (9 * channels) ** 0.5


def _convolve(x, filters, bias=None, padding=(1, 1), other=None, relu=False):
    kernels = torch.ops.lazy_runtime_kernels
    transformed = kernels.winograd_filters(filters)
    assert list(transformed.shape) == winograd.filters_shape(*filters.shape[:2])
    return kernels.winograd(x, transformed, bias, padding, other, 0.0 if relu else None, None)


@pytest.mark.parametrize("padding", [(0, 0), (1, 1), (2, 1), (0, 3)], ids=str)
@pytest.mark.parametrize("channels", [(16, 16), (32, 48), (64, 80), (16, 192), (256, 64)], ids=str)
@pytest.mark.parametrize("size", [(1, 3, 4), (2, 9, 7), (3, 6, 18), (1, 56, 57)], ids=str)
def test_results(size, channels, padding):
    torch.manual_seed(0)
    batch, height, width = size
    x, filters, bias = (
        _images(batch, channels[0], height, width),
        _filters(*reversed(channels)),
        torch.randn(channels[1]),
    )
    expected = torch.nn.functional.conv2d(x.double(), filters.double(), bias.double(), padding=padding)
    found = _convolve(x, filters, bias, padding)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert (found - expected).norm() <= 5e-6 * expected.norm()
    other = _images(*expected.shape)
    expected = torch.relu(expected + other)
    assert (_convolve(x, filters, bias, padding, other, relu=True) - expected).norm() <= 5e-6 * expected.norm()


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", [4, 40])
def test_threads(size, threads):
    torch.manual_seed(0)
    x, filters, before = _images(2, 32, size, size), _filters(192, 32), torch.get_num_threads()
    expected = torch.nn.functional.conv2d(x, filters, padding=1)
    torch.set_num_threads(threads)
    try:
        torch.testing.assert_close(_convolve(x, filters), expected, rtol=1e-4, atol=1e-4)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("place", [0, 4, 8])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_what_is_not_finite_is_by_the_definition(value, place, relu):
    torch.manual_seed(0)
    x, filters, bias = _images(2, 32, 9, 11), _filters(64, 32), torch.randn(64)
    x[1, 3, place, place], x[0, 5, 2, 2], x[0, 7, 2, 2] = value, float("-inf"), 1e38
    expected = torch.nn.functional.conv2d(x, filters, bias, padding=1)
    expected = torch.relu(expected) if relu else expected
    torch.testing.assert_close(_convolve(x, filters, bias, relu=relu), expected, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_filters_that_do_not_fit_are_an_error():
    filters = torch.ops.lazy_runtime_kernels.winograd_filters(_filters(64, 32))
    with pytest.raises(RuntimeError, match="filters of shape"):
        torch.ops.lazy_runtime_kernels.winograd(_images(1, 64, 8, 8), filters, None, [1, 1], None, None, None)


@pytest.mark.parametrize(
    ("filters", "size", "geometry"),
    [
        (torch.ones(64, 64, 3, 3), [4, 64, 2, 2], ([1, 1], [0, 0], [1, 1], 1)),  # no pixel is left
        (torch.ones(64, 64, 3, 3), [1, 64, 7, 7], _GEOMETRY),  # each filter would be read for four tiles
        (torch.ones(64, 64, 3, 3), [64, 64, 1, 1], _GEOMETRY),  # 15 pixels of 16 would be thrown away
        (torch.ones(64, 3, 3, 3), [4, 3, 56, 56], _GEOMETRY),
        (torch.ones(60, 64, 3, 3), _SIZE, _GEOMETRY),
        (torch.ones(64, 64, 5, 5), _SIZE, _GEOMETRY),
        (torch.ones(64, 64, 3, 3).double(), _SIZE, _GEOMETRY),
        (torch.ones(64, 64, 3, 3).bfloat16(), _SIZE, _GEOMETRY),
        (torch.ones(64, 64, 3, 3), _SIZE, ([2, 1], [1, 1], [1, 1], 1)),
        (torch.ones(64, 64, 3, 3), _SIZE, ([1, 1], [1, 1], [1, 2], 1)),
        (torch.ones(64, 32, 3, 3), _SIZE, ([1, 1], [1, 1], [1, 1], 2)),
    ],
)
def test_what_it_is_not_for(filters, size, geometry):
    assert not _pays(filters, size, geometry)


def test_other_platforms_and_who_does_not_want_it(monkeypatch):
    assert not _pays(torch.ones(64, 64, 3, 3), platform="cuda")
    monkeypatch.setenv("XLA_CPU_WINOGRAD", "0")
    assert not _pays(torch.ones(64, 64, 3, 3))


def test_filters_that_are_transformed_at_each_call():
    assert _pays(torch.ones(64, 64, 3, 3), [4, 64, 14, 14], kept=False)
    assert not _pays(torch.ones(64, 64, 3, 3), [4, 64, 7, 7], kept=False)


@pytest.mark.parametrize("padding", [0, (1, 2), 3])
def test_gradients(padding, monkeypatch):
    transformed = []
    transform = winograd.transform
    monkeypatch.setattr(
        winograd, "transform", lambda *args, **named: transformed.append(1) or transform(*args, **named)
    )
    torch.manual_seed(0)
    x, filters, bias = _images(4, 32, 22, 26).requires_grad_(), _filters(48, 32).requires_grad_(), torch.randn(48)
    results = []
    for device in ("cpu", "xla"):
        operands = [each.detach().to(device).requires_grad_() for each in (x, filters, bias)]
        y = torch.nn.functional.conv2d(*operands, padding=padding)
        grads = torch.autograd.grad(y.sin().sum(), operands)
        results.append([each.cpu() for each in (y.detach(), *grads)])
    assert len(transformed) == (1 if padding == 3 else 2)
    for expected, found in zip(*results, strict=True):
        assert (found - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize("wanted", [(True, False), (False, True)])
def test_one_gradient_alone(wanted):
    torch.manual_seed(0)
    x, filters = _images(4, 32, 22, 26), _filters(48, 32)
    results = []
    for device in ("cpu", "xla"):
        operands = [each.detach().to(device) for each in (x, filters)]
        for each, wants in zip(operands, wanted, strict=True):
            each.requires_grad_(wants)
        y = torch.nn.functional.conv2d(*operands, padding=1).sin().sum()
        y.backward()
        results.append([None if each.grad is None else each.grad.cpu() for each in operands])
    for expected, found in zip(*results, strict=True):
        assert (found is None) == (expected is None)
        assert found is None or (found - expected).norm() <= 1e-5 * expected.norm()
