"""Convolutions with filters of 3x3 by Winograd's algorithm, on the CPU (native/winograd.cpp): a quarter of the products
and half to a third of the time of oneDNN's kernels.

In float32 the error in the norm is about four times that of the definition (1e-6 to 3e-6 of a layer); where a result is
not finite it is the definition's. The filters, which take four times the memory, are transformed once
(`openxla_backend/parameters.py`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import jax
import torch
from torch.utils._python_dispatch import _disable_current_modes

from .. import aten_bridge, config, native
from ..layout import ChannelsLast, physical
from .packed import ending, infer_convolution
from .registry import op

#: Pixels of a tile's side, what it is computed from, and the numbers of products.
TILE, POINTS = 4, 36

_LANES = 16

_library = torch.library.Library("lazy_runtime", "FRAGMENT")
_library.define("winograd_filters(Tensor filters) -> Tensor")
_library.define(
    "winograd_convolution(Tensor image, Tensor filters, Tensor? bias, int[] size, int[] stride, int[] padding, "
    "int[] dilation, int groups, Tensor? other=None, str? then=None, float[] numbers=[]) -> Tensor"
)


@functools.cache
def _is_built() -> bool:
    """Whether the kernels are there, and their products, oneDNN's, are made for this processor."""
    try:
        native.winograd()
    except native.NativeError:
        return False
    kernels = torch.ops.lazy_runtime_kernels
    if not hasattr(kernels, "winograd"):  # this torch has no such product
        return False
    with torch.no_grad(), _disable_current_modes(), torch.device("cpu"):
        try:
            kernels.winograd(
                torch.ones(1, 16, 4, 4), kernels.winograd_filters(torch.ones(16, 16, 3, 3)), None, [1, 1], None, False
            )
        except RuntimeError:
            return False
    return True


def pays(filters: torch.Tensor, image_size: Sequence[int], *geometry: object, platform: str) -> bool:
    """Whether a convolution is one for this algorithm, and large enough.

    Args:
        filters: of any device.
        geometry: stride, padding, dilation and groups.
        platform: where it is computed.
    """
    stride, padding, dilation, groups = geometry
    if platform != "cpu" or filters.dtype != torch.float32 or tuple(filters.shape[2:]) != (3, 3):
        return False
    if [*stride, *dilation, groups] != [1] * 5 or filters.shape[0] % _LANES or filters.shape[1] % _LANES:  # type: ignore[misc]
        return False
    results = [size + 2 * padded - 2 for size, padded in zip(image_size[2:], padding, strict=True)]  # type: ignore[call-overload]
    tiles = image_size[0] * math.prod(-(-size // TILE) for size in results)
    # measured: each number of the filters has to be used so often, and half of the products saved
    if tiles < 8 or 9 * image_size[0] * math.prod(results) < 2 * POINTS * tiles:
        return False
    return config.winograd() and aten_bridge.available() and _is_built()


def filters_shape(filters: torch.Tensor) -> list[int]:
    """The shape of transformed filters: 36 matrices, cut into panels of columns."""
    out, channels = filters.shape[:2]
    panel = next(width for width in (64, 48, 32, _LANES) if out % width == 0)
    return [POINTS, out // panel, channels, panel]


_library.impl("winograd_filters", lambda filters: filters.new_empty(filters_shape(filters)), "Meta")
_library.impl("winograd_convolution", infer_convolution, "Meta")


@op("lazy_runtime::winograd_filters")
def winograd_filters(filters, *, out):
    like = jax.ShapeDtypeStruct(out.shape, filters.dtype)
    (made,) = aten_bridge.call("lazy_runtime_kernels::winograd_filters", [filters], [like])
    return made


@op("lazy_runtime::winograd_convolution", channels_last=True, parts=True, products=True)
def winograd_convolution(
    image, filters, bias, size, stride, padding, dilation, groups, other=None, then=None, numbers=(), *, out
):
    """As `packed_convolution`, with transformed filters. relu costs nothing more."""
    like = ChannelsLast.described(out.shape, image.dtype)
    summed = None if other is None else ChannelsLast(physical(other))
    arguments = [ChannelsLast(physical(image)), filters, bias, padding, summed, then == "relu"]
    following = [] if then == "relu" else ending(then, numbers)
    (made,) = aten_bridge.call("lazy_runtime_kernels::winograd", arguments, [like], following)
    return made
