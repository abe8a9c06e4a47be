"""Convolutions of 1x1, and of each channel by itself, with kept weights in kernels of ours on the CPU
(native/pointwise.cpp, native/depthwise.cpp). oneDNN's find out anew at each call what they have to do, which takes 20
to 30 us, and after them an activation is another pass over the results (docs/measurements.md).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch

from ...common import config
from ...lowering import aten_bridge
from ..registry import op
from . import convolution_kernels

#: Channels in a vector of the processor's, of which the kernel for each channel by itself needs one.
LANES = 16


@functools.cache
def _is_built(name: str) -> bool:
    # measured with vectors of 512 bits, which keep a channel's filters in registers
    return torch.backends.cpu.get_cpu_capability() == "AVX512" and aten_bridge.kernel_works(name, _TRIALS[name])


def _is_right_pointwise(kernel: Any) -> bool:
    """Whether a small one is computed: products that are not made for the processor may take something for what it is
    not.
    """
    image = torch.arange(2.0 * 16).view(1, 2, 4, 4).contiguous(memory_format=torch.channels_last)
    filters = torch.arange(2.0 * 24).view(24, 2)
    packed = torch.ops.lazy_runtime_kernels.pointwise_filters(filters)
    found = kernel(image, packed, None, None, None, None)
    return torch.equal(found, torch.einsum("oi,bihw->bohw", filters, image))


def _is_right_depthwise(kernel: Any) -> bool:
    image = torch.ones(1, LANES, 3, 3).contiguous(memory_format=torch.channels_last)
    found = kernel(image, torch.ones(3, 3, LANES), None, 1, [0, 0], None, None, None)
    return torch.equal(found, torch.full((1, LANES, 1, 1), 9.0))


_TRIALS = {"pointwise": _is_right_pointwise, "depthwise": _is_right_depthwise}


def is_available(name: str, platform: str, dtype: Any) -> bool:
    """Whether one of the kernels, "pointwise" or "depthwise", is there for a dtype, torch's or numpy's."""
    is_float32 = str(dtype).removeprefix("torch.") == "float32"
    if platform != "cpu" or not is_float32 or not config.direct_convolutions() or not aten_bridge.available():
        return False
    return _is_built(name)


def is_pointwise(size: Sequence[int], image_size: Sequence[int], *geometry: Any, dtype: Any, platform: str) -> bool:
    """Whether a convolution is one of 1x1 that the kernel computes.

    Args:
        size: of the filters; all sizes in torch's order.
        geometry: stride, padding, dilation and groups.
        dtype: torch's or numpy's.
        platform: where it is computed.
    """
    stride, padding, _, groups = geometry
    is_one = [*size[2:], *stride, *padding, groups] == [1, 1, 1, 1, 0, 0, 1]
    return is_one and math.prod(image_size) > 0 and is_available("pointwise", platform, dtype)


def is_depthwise(size: Sequence[int], image_size: Sequence[int], *geometry: Any, dtype: Any, platform: str) -> bool:
    """Whether a convolution is one of each channel by itself that the kernel computes; as `is_pointwise`."""
    stride, _, dilation, groups = geometry
    side, across = size[2:]
    if side != across or side not in (3, 5) or stride[0] != stride[1] or [*dilation] != [1, 1]:
        return False
    if not groups == image_size[1] == size[0] >= LANES or math.prod(image_size) == 0:
        return False
    return is_available("depthwise", platform, dtype)


# the small ones are XLA's own products, fused with what is around them
convolution_kernels.define("pointwise", is_pointwise, lambda size: [math.prod(size)], smallest=1 << 16)
convolution_kernels.define("depthwise", is_depthwise, lambda size: [*size[2:], size[0]])


@op("lazy_runtime::pointwise_filters")
def pointwise_filters(filters):
    matrix, like = filters.reshape(filters.shape[:2]), jax.ShapeDtypeStruct((filters.size,), filters.dtype)
    (made,) = aten_bridge.call("lazy_runtime_kernels::pointwise_filters", [matrix], [like])
    return made


@op("lazy_runtime::depthwise_filters")
def depthwise_filters(filters):
    return jnp.transpose(filters[:, 0], (1, 2, 0))


@op("lazy_runtime::pointwise_convolution", channels_last=True, parts=True, products=True)
def pointwise_convolution(
    image, filters, bias, size, stride, padding, dilation, groups, other=None, then=None, numbers=(), *, out
):
    """As `packed_convolution`, with filters of 1x1 in the kernel's order."""
    return convolution_kernels.call("pointwise", image, filters, bias, [], out.shape, other, then, numbers)


@op("lazy_runtime::depthwise_convolution", channels_last=True, parts=True, products=True)
def depthwise_convolution(
    image, filters, bias, size, stride, padding, dilation, groups, other=None, then=None, numbers=(), *, out
):
    """As `packed_convolution`, with filters of one channel each in the kernel's order."""
    geometry = [stride[0], list(padding)]
    return convolution_kernels.call("depthwise", image, filters, bias, geometry, out.shape, other, then, numbers)
