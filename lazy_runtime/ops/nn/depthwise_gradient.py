"""The gradient of the filters of convolutions of each channel by itself, on the CPU in a kernel of ours
(native/depthwise_gradient.cpp). Where a window reaches beyond the image it multiplies by zeros, so that a gradient that
is not finite gives NaN there.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import torch

from ...common import config
from ...lowering import aten_bridge
from ...lowering.layout import ChannelsLast

#: Channels in a vector of the processor's, of which the kernel needs one.
LANES = 16


def pays(x: Any, weight: Any, geometry: Any, platform: str) -> bool:
    """Whether the kernel takes a convolution of this image, an array with its channels last, and is faster than
    oneDNN's, which is as fast with filters of 3×3.
    """
    if platform != "cpu" or x.ndim != 4 or x.dtype != jnp.float32 or x.size == 0 or geometry.transposed:
        return False
    side, across = weight.shape[2:]
    if side != across or side not in (5, 7) or len({*geometry.stride}) > 1 or {*geometry.dilation} != {1}:
        return False
    if not geometry.groups == x.shape[-1] == weight.shape[0] >= LANES:
        return False
    return config.direct_convolutions() and _is_built() and aten_bridge.available()


@functools.cache
def _is_built() -> bool:
    # measured with vectors of 512 bits, which keep the sums in registers
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    image = torch.ones(1, LANES, 5, 5).contiguous(memory_format=torch.channels_last)
    gradient, ones = image[..., :1, :1], torch.ones(5, 5, LANES)
    return aten_bridge.kernel_works(
        "depthwise_gradient", lambda kernel: torch.equal(kernel(gradient, image, 5, 1, [0, 0]), ones)
    )


def of_filters(grad: Any, x: Any, weight: Any, geometry: Any) -> Any:
    """The gradient, of the filters' shape in torch's order.

    Args:
        grad, x: with their channels last.
    """
    side, channels = weight.shape[-1], x.shape[-1]
    operands = [ChannelsLast(grad), ChannelsLast(x), side, geometry.stride[0], list(geometry.padding)]
    like = jax.ShapeDtypeStruct((side, side, channels), x.dtype)
    (made,) = aten_bridge.call("lazy_runtime_kernels::depthwise_gradient", operands, [like])
    return jnp.transpose(made, (2, 0, 1))[:, None]
