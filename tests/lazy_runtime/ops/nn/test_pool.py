"""Pooling of every geometry, with windows at random places, and the inverse of max pooling."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lazy_runtime.compilation import compiler
from lazy_runtime.lowering import aten_bridge
from tests.lazy_runtime.ops.comparison import check, rand

FLOATS = [torch.float32, torch.float64, torch.bfloat16]
SIZES = {1: (2, 3, 11), 2: (2, 3, 9, 8), 3: (2, 2, 7, 6, 5)}
MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVERAGE = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
ADAPTIVE_MAX = {1: F.adaptive_max_pool1d, 2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d}
ADAPTIVE_AVERAGE = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}

MAX_OPTIONS = [
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 3, "stride": 1},  # windows overlap: gradients add up
    {"kernel_size": 2, "stride": 3, "ceil_mode": True},
    {"kernel_size": 3, "stride": 2, "padding": 1, "dilation": 2, "ceil_mode": True},
]

AVERAGE_OPTIONS = [
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False},
    {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True, "count_include_pad": False},
    {"kernel_size": 2, "stride": 3, "ceil_mode": True, "padding": 1},
]


@pytest.fixture(params=["bridge", "xla alone"])
def way(request, monkeypatch):
    """How the gradient of max_pool2d is lowered on the CPU. What one way compiled must not serve the other."""
    compiler.clear()
    if request.param == "xla alone":
        monkeypatch.setattr(aten_bridge, "available", lambda: False)
    yield
    compiler.clear()


@pytest.mark.parametrize("options", MAX_OPTIONS, ids=str)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_max(way, n, options):
    check(MAX[n], rand(*SIZES[n]), **options, return_indices=True)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [2, 3])
def test_max_of_one_image_in_each_dtype(way, n, dtype):
    check(MAX[n], rand(*SIZES[n][1:], dtype=dtype), kernel_size=3, stride=2, padding=1, return_indices=True)


def test_max_with_uneven_windows(way):
    check(F.max_pool2d, rand(2, 3, 9, 8), (3, 2), stride=(1, 3), padding=(1, 0), dilation=(1, 2), return_indices=True)


def test_the_first_of_equals_is_the_maximum(way):
    image = torch.zeros(1, 1, 4, 4, requires_grad=True)
    check(F.max_pool2d, image, 3, stride=1, return_indices=True)


def test_infinities_and_nan_in_a_window(way):
    image = rand(1, 2, 6, 6)
    with torch.no_grad():
        image[0, 0, 1, 1], image[0, 0, 4, 4], image[0, 1] = torch.nan, torch.inf, -torch.inf
    check(F.max_pool2d, image, 2, return_indices=True)


def test_max_of_integers():
    check(F.max_pool2d, torch.randint(-9, 9, (2, 3, 7, 7)), 3, stride=2, padding=1, return_indices=True)


def test_max_in_channels_last_memory(way):
    image = rand(2, 4, 7, 6).detach().to(memory_format=torch.channels_last).requires_grad_()
    check(lambda x: F.relu(F.max_pool2d(x, 3, stride=2, padding=1)) * 2, image)


@pytest.mark.parametrize("options", AVERAGE_OPTIONS, ids=str)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_average(n, options):
    check(AVERAGE[n], rand(*SIZES[n]), **options)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_average_of_one_image_in_each_dtype(n, dtype):
    if n == 3 and dtype == torch.bfloat16:  # torch's CPU kernel has none to compare with
        check(AVERAGE[n], rand(*SIZES[n][1:]), kernel_size=(2, 3, 1))
        return
    check(AVERAGE[n], rand(*SIZES[n][1:], dtype=dtype), kernel_size=3, stride=2, padding=1)


@pytest.mark.parametrize("n", [2, 3])
def test_divisor_override(n):
    check(AVERAGE[n], rand(*SIZES[n]), kernel_size=3, stride=2, padding=1, ceil_mode=True, divisor_override=5)


def test_an_average_of_integers_is_rounded_towards_zero():
    check(F.avg_pool2d, torch.randint(-9, 9, (2, 3, 7, 7)), 2, stride=2, padding=1)


@pytest.mark.parametrize("sizes", [1, 2, 3, 5])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_adaptive_average(n, sizes):
    check(ADAPTIVE_AVERAGE[n], rand(*SIZES[n]), sizes)


@pytest.mark.parametrize("sizes", [1, 2, 3, 5])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_adaptive_max(n, sizes):
    check(ADAPTIVE_MAX[n], rand(*SIZES[n]), sizes, return_indices=True)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("pool", [F.adaptive_avg_pool2d, F.adaptive_max_pool2d, F.adaptive_avg_pool3d])
def test_adaptive_of_one_image_in_each_dtype(pool, dtype):
    image = rand(3, 7, 6, dtype=dtype) if "2d" in pool.__name__ else rand(2, 4, 7, 6, dtype=dtype)
    check(pool, image, (3, None, 6)[3 - (image.ndim - 1) :])


def test_adaptive_max_finds_nan_and_the_first_of_equals():
    image = torch.zeros(1, 2, 7, 7)
    image[0, 0, 3, 3] = torch.nan
    check(F.adaptive_max_pool2d, image, 3, return_indices=True)


@pytest.mark.parametrize("n", [2, 3])
def test_fractional_max_pool(n):
    """With samples that are given; nan wins."""
    pool = F.fractional_max_pool2d if n == 2 else F.fractional_max_pool3d
    x = rand(2, 3, *(9, 8, 7)[:n])
    x.data[0, 0, 1] = torch.nan
    for size in [(4, 3, 5), (1, 2, 3)]:
        check(pool, x, 2, output_size=size[:n], return_indices=True, _random_samples=torch.rand(2, 3, n))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_max_unpool(n):
    pool, unpool = MAX[n], {1: F.max_unpool1d, 2: F.max_unpool2d, 3: F.max_unpool3d}[n]

    def back(x):
        return unpool(*pool(x, 2, return_indices=True), 2)

    check(back, rand(2, 3, *(4, 6, 2)[:n]))


def test_max_unpool_refuses_an_index_out_of_range():
    x, index = torch.ones(1, 1, 2, 2, device="xla"), torch.full((1, 1, 2, 2), 16, device="xla")
    with pytest.raises(RuntimeError, match=r"Found an invalid max index: 16 \(output volumes are of size 4x4\)"):
        torch.ops.aten.max_unpool2d(x, index, [4, 4]).cpu()


@pytest.mark.parametrize("pool", [F.max_pool3d, F.avg_pool3d], ids=["max", "average"])
def test_a_single_volume_from_a_convolution(pool):
    """Four dimensions, of which the convolution has left the second in the last place, and without a batch."""
    check(lambda x, weight: pool(F.conv2d(x, weight), 2), rand(2, 3, 6, 6), rand(3, 3, 1, 1))
