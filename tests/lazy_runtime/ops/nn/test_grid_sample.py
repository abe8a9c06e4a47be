"""Sampling by a grid: every mode and padding; positions on, beyond and far from the borders."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.lazy_runtime.ops.comparison import check, close, rand

SPECIAL = torch.tensor([1.0, -1.0, 0.0, 1.0, -1.0, 2.5, -7.0, 0.5], dtype=torch.float64)


def grid(*sizes: int) -> torch.Tensor:
    positions = rand(*sizes, dtype=torch.float64, grad=False) * 1.5
    positions.view(-1)[: len(SPECIAL)] = SPECIAL
    return positions.requires_grad_()


@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize(
    ("mode", "align_corners"), [("bilinear", True), ("bilinear", False), ("nearest", True), ("bicubic", False)]
)
def test_images(mode, align_corners, padding_mode):
    options = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    check(F.grid_sample, rand(2, 3, 4, 5, dtype=torch.float64), grid(2, 3, 6, 2), tolerance=1e-9, **options)


@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
def test_volumes(padding_mode):
    x = rand(2, 3, 4, 5, 3, dtype=torch.float64)
    check(F.grid_sample, x, grid(2, 3, 2, 4, 3), padding_mode=padding_mode, align_corners=False, tolerance=1e-9)


@pytest.mark.parametrize("sizes", [(4, 5), (4, 5, 3)])
@pytest.mark.parametrize("wanted", ["image", "grid"])
def test_one_gradient(wanted, sizes):
    x, positions = rand(2, 3, *sizes, dtype=torch.float64), grid(2, *sizes, len(sizes))
    (x if wanted == "grid" else positions).requires_grad_(False)
    check(F.grid_sample, x, positions, align_corners=False, tolerance=1e-9)


@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_nan_and_far_away(mode, padding_mode):
    x, positions = torch.randn(1, 2, 3, 3), torch.zeros(1, 2, 2, 2)
    positions[0, 0, 0, 0], positions[0, 1, 0, 0] = torch.nan, 1e9
    found = [
        F.grid_sample(x.to(d), positions.to(d), mode=mode, padding_mode=padding_mode, align_corners=False)
        for d in ("xla", "cpu")
    ]
    close(*found)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_are_computed_in_32(dtype, mode):
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(1, 2, 5, 20, generator=generator).to(dtype)
    grid = (torch.rand(1, 6, 6, 2, generator=generator) * 2 - 1).to(dtype)

    def gradient(image, grid):
        grid = grid.clone().requires_grad_()
        sampled = F.grid_sample(image, grid, mode, align_corners=False)
        return torch.autograd.grad(sampled.sum(), grid)[0]

    exact = gradient(image.double(), grid.double())
    result = gradient(image.to("xla"), grid.to("xla")).cpu()
    torch.testing.assert_close(result.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=1e-3)
