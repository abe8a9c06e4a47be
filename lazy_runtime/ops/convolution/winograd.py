"""Convolutions with filters of 3x3 by Winograd's algorithm, on the CPU (native/winograd.cpp): a quarter of the products
and half to a third of the time of oneDNN's kernels. The gradient of the filters too.

In float32 the error in the norm is about four times that of the definition (1e-6 to 3e-6 of a layer); where a result is
not finite it is the definition's. The filters, which take four times the memory, are transformed once
(`openxla_backend/inference/constant_hoisting.py`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import torch

from ...common import config
from ...lowering import aten_bridge
from ...lowering.layout import ChannelsLast, logical
from .. import kernels
from ..kernels import Kernel, Refused, Verdict
from ..registry import op
from . import prepacked_convolution
from .convolution_problem import ConvolutionProblem, can_pack, is_2d, is_float32, is_gradient_of

#: Pixels of a tile's side, what it is computed from, and the numbers of products.
TILE, POINTS = 4, 36

_LANES = 16


@functools.cache
def _is_built() -> bool:
    return aten_bridge.kernel_works("winograd", _compute_one)


def _compute_one(kernel: Any) -> bool:
    filters = torch.ops.lazy_runtime_kernels.winograd_filters(torch.ones(16, 16, 3, 3))
    kernel(torch.ones(1, 16, 4, 4), filters, None, [1, 1], None, None, None)
    return True


def available(platform: str) -> Verdict:
    """Whether the kernel is there."""
    return (
        kernels.on_cpu(platform)
        and (config.winograd() or Refused("XLA_CPU_WINOGRAD is off"))
        and kernels.works(_is_built, "winograd")
    )


def accepts(problem: ConvolutionProblem) -> Verdict:
    """Whether a convolution is one for this algorithm, and large enough."""
    return (
        is_2d(problem)
        and (not problem.kept_on or can_pack(problem))
        and is_float32(problem)
        and _is_computed(problem)
        and _saves_products(problem)
        and available(problem.platform)
    )


def accepts_image_gradient(problem: ConvolutionProblem) -> Verdict:
    """Whether the gradient of the image, a convolution with the filters turned, is one for this algorithm."""
    padding = max(problem.geometry.padding)
    return (
        is_gradient_of(problem, "image")
        and accepts(problem)
        and (padding <= 2 or Refused(f"the padding of {padding} is larger than the filters' reach of 2"))
    )


def _is_computed(problem: ConvolutionProblem) -> Verdict:
    """Whether the kernels take such a convolution."""
    stride, _, dilation, _, _, groups = problem.geometry
    out, channels, *side = problem.filters
    return (
        (side == [3, 3] or Refused("the filters are not of 3x3"))
        and ([*stride, *dilation, groups] == [1] * 5 or Refused("it is strided, dilated or grouped"))
        and (out % _LANES == channels % _LANES == 0 or Refused(f"channels are no multiples of {_LANES}"))
    )


def _saves_products(problem: ConvolutionProblem) -> Verdict:
    pixels, tiles = _pixels_and_tiles(problem.image, problem.geometry.padding)
    # measured: each number of the filters has to be used so often, and half of the products saved
    return (
        (tiles >= LEAST_TILES or Refused(f"{tiles} tiles of {TILE}x{TILE} pixels are fewer than {LEAST_TILES}"))
        and (9 * pixels >= 2 * POINTS * tiles or Refused("less than half of the products are saved: tiles stick out"))
        and (
            bool(problem.kept_on)
            or pixels >= LEAST_PIXELS
            or Refused(f"filters are transformed at each call, for {pixels} pixels, fewer than {LEAST_PIXELS}")
        )
    )


def _pixels_and_tiles(image_size: Sequence[int], padding: Sequence[int]) -> tuple[int, int]:
    """Of the results of a convolution, for all images together; none if they have no pixels."""
    results = [max(0, side + 2 * padded - 2) for side, padded in zip(image_size[2:], padding, strict=True)]
    return image_size[0] * math.prod(results), image_size[0] * math.prod(-(-side // TILE) for side in results)


#: Tiles from which on it pays to read the filters, which take four times the memory.
LEAST_TILES = 8

#: Pixels from which on a convolution saves more than it takes to transform its filters. Measured on Zen 4, when it
#: took 14 ns for one of 3x3 (since then less); it saves 0.05 for each of its pixels.
LEAST_PIXELS = 512


def filters_shape(out: int, channels: int) -> list[int]:
    """The shape of transformed filters: 36 matrices, cut into panels of columns."""
    panel = next(width for width in (64, 48, 32, _LANES) if out % width == 0)
    return [POINTS, out // panel, channels, panel]


def transform(filters: Any, backward: bool = False) -> Any:
    """The filters, an array, as the kernel takes them.

    Args:
        backward: for the convolution of the results' gradients that gives the image's: padded by 2 less the padding.
    """
    out, channels = filters.shape[:2]
    shape = filters_shape(channels, out) if backward else filters_shape(out, channels)
    like = jax.ShapeDtypeStruct(shape, filters.dtype)
    (made,) = aten_bridge.call("lazy_runtime_kernels::winograd_filters", [filters, backward], [like])
    return made


_PACKING = prepacked_convolution.define("winograd", lambda size: filters_shape(size[0], size[1]))


@op("lazy_runtime::winograd_filters")
def winograd_filters(filters):
    return transform(filters)


@op("lazy_runtime::winograd_convolution", channels_last=True, parts=True, products=True)
def winograd_convolution(
    image, filters, bias, size, stride, padding, dilation, groups, other=None, then=None, numbers=(), *, out
):
    """As `packed_convolution`, with transformed filters."""
    return prepacked_convolution.call(
        "winograd", image, filters, bias, [list(padding)], out.shape, other, then, numbers
    )


def convolve(image: ChannelsLast, filters: Any, bias: Any, padding: Sequence[int], shape: Sequence[int]) -> Any:
    """A convolution with transformed filters.

    Args:
        shape: of the result, in torch's order.
    """
    return prepacked_convolution.call("winograd", image, filters, bias, [list(padding)], shape)


# ---- the gradient of the filters (native/winograd_gradient.cpp)


#: Tiles and channels from which on the gradient of filters saves more than its 36 sums and its transforms cost.
#: Measured on Intel's model 207.
LEAST_TILES_OF_GRADIENT, LEAST_CHANNELS_OF_GRADIENT = 16, 32


@functools.cache
def _is_gradient_built() -> bool:
    if torch.backends.cpu.get_cpu_capability() != "AVX512":  # its products' sums take 24 registers of 512 bits
        return False
    image = torch.ones(1, _LANES, 3, 3).contiguous(memory_format=torch.channels_last)
    gradient, ones = image[..., :1, :1], torch.ones(_LANES, _LANES, 3, 3)
    return aten_bridge.kernel_works(
        "winograd_gradient", lambda kernel: torch.allclose(kernel(gradient, image, [0, 0]), ones)
    )


def available_gradient(platform: str) -> Verdict:
    """Whether the kernel of the filters' gradient is there."""
    return (
        kernels.on_cpu(platform)
        and (config.winograd() or Refused("XLA_CPU_WINOGRAD is off"))
        and kernels.has_wide_vectors()
        and kernels.works(_is_gradient_built, "winograd_gradient")
    )


def accepts_filters_gradient(problem: ConvolutionProblem) -> Verdict:
    """Whether the gradient of the filters is one for this algorithm, and large enough."""
    return (
        is_gradient_of(problem, "filters")
        and is_2d(problem)
        and is_float32(problem)
        and _is_computed(problem)
        and _gradient_saves_products(problem)
        and available_gradient(problem.platform)
    )


def _gradient_saves_products(problem: ConvolutionProblem) -> Verdict:
    channels = min(problem.filters[:2])
    pixels, tiles = _pixels_and_tiles(problem.image, problem.geometry.padding)
    least = LEAST_TILES_OF_GRADIENT
    return (
        (channels >= LEAST_CHANNELS_OF_GRADIENT or Refused(f"channels are fewer than {LEAST_CHANNELS_OF_GRADIENT}"))
        and (tiles >= least or Refused(f"{tiles} tiles of {TILE}x{TILE} pixels are fewer than {least}"))
        and (9 * pixels >= 2 * POINTS * tiles or Refused("less than half of the products are saved: tiles stick out"))
    )


def gradient(grad: ChannelsLast, image: ChannelsLast, padding: Sequence[int]) -> Any:
    """The gradient of the filters, in torch's order."""
    like = jax.ShapeDtypeStruct((grad.shape[1], image.shape[1], 3, 3), image.dtype)
    (made,) = aten_bridge.call("lazy_runtime_kernels::winograd_gradient", [grad, image, list(padding)], [like])
    return made


# ---- the rows


def _convolve(x: Any, weight: Any, bias: Any, shape: Sequence[int], problem: ConvolutionProblem) -> Any:
    filters = transform(logical(weight))
    return convolve(ChannelsLast(x), filters, logical(bias), problem.geometry.padding, shape).physical


def _image_gradient(grad: Any, x: Any, weight: Any, problem: ConvolutionProblem, wanted: tuple[bool, bool]) -> Any:
    padding = [2 - padded for padded in problem.geometry.padding]
    filters = transform(weight, backward=True)
    return convolve(ChannelsLast(grad), filters, None, padding, problem.image).physical, None


def _filters_gradient(grad: Any, x: Any, weight: Any, problem: ConvolutionProblem, wanted: tuple[bool, bool]) -> Any:
    return None, gradient(ChannelsLast(grad), ChannelsLast(x), problem.geometry.padding)


def _thresholds() -> dict[str, Any]:
    return {"least tiles": LEAST_TILES, "least pixels of filters that are not kept": LEAST_PIXELS}


KERNEL = Kernel("Winograd", accepts, _convolve, available, _thresholds, _PACKING)
IMAGE_GRADIENT = Kernel("Winograd, image", accepts_image_gradient, _image_gradient, available, _thresholds)
FILTERS_GRADIENT = Kernel(
    "Winograd, filters",
    accepts_filters_gradient,
    _filters_gradient,
    available_gradient,
    lambda: {"least tiles": LEAST_TILES_OF_GRADIENT, "least channels": LEAST_CHANNELS_OF_GRADIENT},
)
