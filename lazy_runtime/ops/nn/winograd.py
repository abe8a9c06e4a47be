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
from ...lowering.layout import ChannelsLast
from ..registry import op
from . import convolution_kernels

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


@functools.cache
def _is_available(platform: str, dtype: str) -> bool:
    return platform == "cpu" and dtype == "float32" and _is_built()


def pays(
    size: Sequence[int],
    image_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    *,
    dtype: Any,
    platform: str,
    kept: bool,
) -> bool:
    """Whether a convolution is one for this algorithm, and large enough.

    Args:
        size: of the filters; all sizes in torch's order.
        dtype: torch's or numpy's.
        platform: where it is computed.
        kept: the filters are transformed once for many calls.
    """
    if not _is_computed(size, stride, dilation, groups):
        return False
    pixels, tiles = _pixels_and_tiles(image_size, padding)
    # measured: each number of the filters has to be used so often, and half of the products saved
    if tiles < 8 or 9 * pixels < 2 * POINTS * tiles:
        return False
    if not kept and pixels < LEAST_PIXELS:
        return False
    return _is_available(platform, str(dtype).removeprefix("torch.")) and config.winograd() and aten_bridge.available()


def _is_computed(size: Sequence[int], stride: Sequence[int], dilation: Sequence[int], groups: int) -> bool:
    """Whether the kernels take such a convolution."""
    has_vectors = size[0] % _LANES == 0 and size[1] % _LANES == 0
    return tuple(size[2:]) == (3, 3) and [*stride, *dilation, groups] == [1] * 5 and has_vectors


def _pixels_and_tiles(image_size: Sequence[int], padding: Sequence[int]) -> tuple[int, int]:
    """Of the results of a convolution, for all images together; none if they have no pixels."""
    results = [max(0, side + 2 * padded - 2) for side, padded in zip(image_size[2:], padding, strict=True)]
    return image_size[0] * math.prod(results), image_size[0] * math.prod(-(-side // TILE) for side in results)


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


convolution_kernels.define("winograd", functools.partial(pays, kept=True), lambda size: filters_shape(size[0], size[1]))


@op("lazy_runtime::winograd_filters")
def winograd_filters(filters):
    return transform(filters)


@op("lazy_runtime::winograd_convolution", channels_last=True, parts=True, products=True)
def winograd_convolution(
    image, filters, bias, size, stride, padding, dilation, groups, other=None, then=None, numbers=(), *, out
):
    """As `packed_convolution`, with transformed filters."""
    return convolution_kernels.call("winograd", image, filters, bias, [list(padding)], out.shape, other, then, numbers)


def convolve(image: ChannelsLast, filters: Any, bias: Any, padding: Sequence[int], shape: Sequence[int]) -> Any:
    """A convolution with transformed filters.

    Args:
        shape: of the result, in torch's order.
    """
    return convolution_kernels.call("winograd", image, filters, bias, [list(padding)], shape)


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


def gradient_pays(
    size: Sequence[int],
    image_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    *,
    dtype: Any,
    platform: str,
) -> bool:
    """Whether the gradient of a convolution's filters is one for this algorithm, and large enough; as `pays`."""
    if platform != "cpu" or str(dtype).removeprefix("torch.") != "float32":
        return False
    if not _is_computed(size, stride, dilation, groups) or min(size[:2]) < LEAST_CHANNELS_OF_GRADIENT:
        return False
    pixels, tiles = _pixels_and_tiles(image_size, padding)
    if tiles < LEAST_TILES_OF_GRADIENT or 9 * pixels < 2 * POINTS * tiles:
        return False
    return _is_gradient_built() and config.winograd() and aten_bridge.available()


def gradient(grad: ChannelsLast, image: ChannelsLast, padding: Sequence[int]) -> Any:
    """The gradient of the filters, in torch's order."""
    like = jax.ShapeDtypeStruct((grad.shape[1], image.shape[1], 3, 3), image.dtype)
    (made,) = aten_bridge.call("lazy_runtime_kernels::winograd_gradient", [grad, image, list(padding)], [like])
    return made
