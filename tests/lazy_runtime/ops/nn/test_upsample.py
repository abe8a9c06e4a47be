"""Resampling: every mode up and down, both memory formats, antialiasing, bytes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.lazy_runtime.ops.comparison import check, rand

MODES = {
    1: ["nearest", "nearest-exact", "linear"],
    2: ["nearest", "nearest-exact", "bilinear", "bicubic"],
    3: ["nearest", "nearest-exact", "trilinear"],
}
SIZES = {1: (2, 3, 7), 2: (2, 3, 7, 5), 3: (1, 2, 4, 5, 3)}
TARGETS = [
    {"scale_factor": 2.0},
    {"scale_factor": 0.6},
    {"size": 13},  # more taps in the gradient than are summed one by one
]


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize(("n", "mode"), [(n, mode) for n, modes in MODES.items() for mode in modes])
def test_modes(n, mode, target):
    options = {} if "nearest" in mode else {"align_corners": False}
    check(F.interpolate, rand(*SIZES[n]), mode=mode, **target, **options)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_aligned_corners(mode, dtype):
    check(F.interpolate, rand(2, 3, 7, 5, dtype=dtype), mode=mode, size=(4, 9), align_corners=True)


def test_channels_last():
    x = rand(2, 3, 7, 5).detach().to(memory_format=torch.channels_last).requires_grad_()

    def through_a_convolution(x, kernel):
        return F.interpolate(F.conv2d(x, kernel), scale_factor=2, mode="bilinear")

    check(through_a_convolution, x, rand(3, 3, 3, 3))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("size", [(3, 20), (16, 2)])
def test_antialiasing(mode, size):
    check(F.interpolate, rand(2, 3, 11, 9), mode=mode, size=size, antialias=True)
    check(F.interpolate, (rand(2, 3, 11, 9, grad=False).sigmoid() * 255).byte(), mode=mode, size=size, antialias=True)


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_bytes_are_rounded_as_on_the_cpu(mode):
    x = (rand(2, 5, 11, 9, grad=False).sigmoid() * 255).byte()
    for size in [(20, 4), (1, 9)]:
        check(F.interpolate, x, mode=mode, size=size)


def test_of_no_images():
    check(F.interpolate, rand(0, 3, 4, 5), scale_factor=2, mode="bilinear")
