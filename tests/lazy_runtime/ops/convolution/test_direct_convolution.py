"""Convolutions of 1x1, and of each channel by itself, against torch's own, in float64."""

from __future__ import annotations

import functools
import math

import pytest
import torch

from lazy_runtime.ops.convolution import direct_convolution
from lazy_runtime.ops.convolution.convolution_problem import ConvolutionProblem, Geometry
from tests import native_part

pytestmark = [
    native_part.need_kernel(functools.partial(direct_convolution._is_built, name))
    for name in ("pointwise", "depthwise")
]


def _images(*size: int) -> torch.Tensor:
    return torch.randn(size).contiguous(memory_format=torch.channels_last)


def _pointwise(x, filters, bias=None, other=None, low=None, high=None):
    kernels = torch.ops.lazy_runtime_kernels
    return kernels.pointwise(x, kernels.pointwise_filters(filters.flatten(1)), bias, other, low, high)


def _depthwise(x, filters, bias=None, stride=1, padding=(0, 0), other=None, low=None, high=None):
    ordered = filters[:, 0].permute(1, 2, 0).contiguous()
    return torch.ops.lazy_runtime_kernels.depthwise(x, ordered, bias, stride, padding, other, low, high)


def _check_endings(convolve, expected, bias):
    """With a bias, a sum, and every kind of bounds."""
    other = _images(*expected.shape)
    for row in (None, bias):
        sums = expected if row is None else expected + row.double().view(-1, 1, 1)
        for summed in (None, other):
            total = sums if summed is None else sums + summed
            for low, high in ((None, None), (0.0, None), (0.0, 0.5), (None, 0.1)):
                found = convolve(row, summed, low, high)
                bounded = total.clamp(-math.inf if low is None else low, math.inf if high is None else high)
                assert found.is_contiguous(memory_format=torch.channels_last)
                # a sum of n numbers in float32 is off by up to sqrt(n) roundings of 6e-8: of 900, 1.8e-6
                assert (found - bounded).norm() <= 3e-6 * bounded.norm()


@pytest.mark.parametrize(
    "channels", [(1, 1), (3, 24), (16, 96), (96, 24), (40, 1000), (576, 130), (900, 64), (64, 193), (20, 8)], ids=str
)
@pytest.mark.parametrize("size", [(1, 1, 1), (2, 7, 5), (1, 56, 57)], ids=str)
def test_pointwise(size, channels):
    torch.manual_seed(0)
    batch, height, width = size
    x, bias = _images(batch, channels[0], height, width), torch.randn(channels[1])
    filters = torch.randn(channels[1], channels[0], 1, 1) / channels[0] ** 0.5
    expected = torch.nn.functional.conv2d(x.double(), filters.double())
    _check_endings(
        lambda row, other, low, high: _pointwise(x, filters, row, other, low, high),
        expected,
        bias,
    )


@pytest.mark.parametrize("channels", [16, 24, 72, 130])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("side", [3, 5])
@pytest.mark.parametrize(
    ("size", "padding"), [((2, 9, 8), (1, 1)), ((1, 5, 6), (2, 0)), ((1, 2, 1), (2, 2)), ((3, 14, 14), (0, 4))], ids=str
)
def test_depthwise(size, padding, side, stride, channels):
    torch.manual_seed(0)
    batch, height, width = size
    x, bias = _images(batch, channels, height, width), torch.randn(channels)
    filters = torch.randn(channels, 1, side, side) / side
    expected = torch.nn.functional.conv2d(
        x.double(), filters.double(), None, (stride, stride), padding, groups=channels
    )
    _check_endings(
        lambda row, other, low, high: _depthwise(x, filters, row, stride, padding, other, low, high),
        expected,
        bias,
    )


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads(threads):
    torch.manual_seed(0)
    x, filters, single = _images(2, 64, 9, 9), torch.randn(80, 64, 1, 1), torch.randn(64, 1, 3, 3)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        torch.testing.assert_close(_pointwise(x, filters), torch.nn.functional.conv2d(x, filters), rtol=1e-4, atol=1e-4)
        expected = torch.nn.functional.conv2d(x, single, groups=64)
        torch.testing.assert_close(_depthwise(x, single), expected, rtol=1e-4, atol=1e-4)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 3e38])
def test_what_is_not_finite(value):
    torch.manual_seed(0)
    x, filters, single = _images(1, 40, 5, 5), torch.randn(24, 40, 1, 1), torch.randn(40, 1, 3, 3)
    x[0, 3, 2, 2], x[0, 39, 2, 2] = value, value
    for found, expected in (
        (_pointwise(x, filters, low=0.0, high=6.0), torch.nn.functional.conv2d(x, filters)),
        (_depthwise(x, single, low=0.0, high=6.0), torch.nn.functional.conv2d(x, single, groups=40)),
    ):
        expected = torch.nn.functional.relu6(expected)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_filters_that_do_not_fit_are_an_error():
    kernels = torch.ops.lazy_runtime_kernels
    with pytest.raises(RuntimeError, match="numbers for images of shape"):
        kernels.pointwise(_images(1, 24, 4, 4), torch.ones(100), None, None, None, None)
    with pytest.raises(RuntimeError, match="filters of shape"):
        kernels.depthwise(_images(1, 24, 4, 4), torch.ones(3, 3, 16), None, 1, [0, 0], None, None, None)
    with pytest.raises(RuntimeError, match="filters of shape"):
        kernels.depthwise(_images(1, 8, 4, 4), torch.ones(3, 3, 8), None, 1, [0, 0], None, None, None)


_GEOMETRY = ([1, 1], [0, 0], [1, 1], 1)


def _problem(size, geometry, dtype=torch.float32, platform="cpu"):
    """A convolution of two images of 64 channels, whose filters are kept."""
    stride, padding, dilation, groups = geometry
    where = Geometry.of(2, stride, padding, dilation, False, [0, 0], groups)
    name = str(dtype).removeprefix("torch.")
    return ConvolutionProblem((2, 64, 9, 9), size, where, name, platform, name, name, kept_on="xla")


@pytest.mark.parametrize(
    ("size", "geometry", "options"),
    [
        ((64, 64, 1, 1), ([2, 2], [0, 0], [1, 1], 1), {}),
        ((64, 64, 1, 1), ([1, 1], [1, 1], [1, 1], 1), {}),
        ((64, 32, 1, 1), ([1, 1], [0, 0], [1, 1], 2), {}),
        ((64, 64, 1, 3), _GEOMETRY, {}),
        ((64, 64, 1, 1), _GEOMETRY, {"platform": "gpu"}),
        ((64, 64, 1, 1), _GEOMETRY, {"dtype": torch.float64}),
        ((64, 1, 7, 7), ([1, 1], [0, 0], [1, 1], 64), {}),
        ((64, 1, 3, 5), ([1, 1], [0, 0], [1, 1], 64), {}),
        ((64, 1, 3, 3), ([1, 2], [0, 0], [1, 1], 64), {}),
        ((64, 1, 3, 3), ([1, 1], [0, 0], [2, 2], 64), {}),
        ((128, 1, 3, 3), ([1, 1], [0, 0], [1, 1], 64), {}),
        ((64, 2, 3, 3), ([1, 1], [0, 0], [1, 1], 32), {}),
    ],
)
def test_others_are_left_alone(size, geometry, options):
    for accepts in (direct_convolution.accepts_pointwise, direct_convolution.accepts_depthwise):
        assert not accepts(_problem(size, geometry, **options))


def test_they_can_be_turned_off(monkeypatch):
    problem = _problem((64, 64, 1, 1), _GEOMETRY)
    assert direct_convolution.accepts_pointwise(problem)
    monkeypatch.setenv("XLA_CPU_DIRECT_CONVOLUTIONS", "0")
    assert not direct_convolution.accepts_pointwise(problem)
