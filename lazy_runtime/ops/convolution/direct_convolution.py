"""Convolutions of 1x1, and of each channel by itself, with kept weights in kernels of ours on the CPU
(native/pointwise.cpp, native/depthwise.cpp). oneDNN's find out anew at each call what they have to do, which takes 20
to 30 us, and after them an activation is another pass over the results (docs/measurements.md).
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import torch

from ...common import config
from ...lowering import aten_bridge
from .. import kernels
from ..kernels import Kernel, Refused, Verdict
from ..registry import op
from . import prepacked_convolution
from .convolution_problem import ConvolutionProblem, can_pack, is_float32, is_large

#: Channels in a vector of the processor's, of which the kernel for each channel by itself needs one.
LANES = 16

#: Multiplications that a convolution of 1x1 must have. Smaller ones are XLA's own products, fused with what is around.
LEAST_POINTWISE = 1 << 16


@functools.cache
def _is_built(name: str) -> bool:
    # measured with vectors of 512 bits, which keep a channel's filters in registers
    return bool(kernels.has_wide_vectors()) and aten_bridge.kernel_works(name, _TRIALS[name])


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


def available(name: str, platform: str) -> Verdict:
    """Whether one of the kernels, "pointwise" or "depthwise", is there."""
    return (
        kernels.on_cpu(platform)
        and (config.direct_convolutions() or Refused("XLA_CPU_DIRECT_CONVOLUTIONS is off"))
        and kernels.has_wide_vectors()
        and kernels.works(functools.partial(_is_built, name), name)
    )


def accepts_pointwise(problem: ConvolutionProblem) -> Verdict:
    """Whether a convolution is one of 1x1 with kept filters that the kernel computes."""
    stride, padding, _, _, _, groups = problem.geometry
    is_one = [*problem.filters[2:], *stride, *padding, groups] == [1, 1, 1, 1, 0, 0, 1]
    return (
        can_pack(problem)
        and is_float32(problem)
        and (is_one or Refused("it is not of 1x1, or strided, padded or grouped"))
        and (not problem.is_empty or Refused("there are no images"))
        and is_large(problem, LEAST_POINTWISE)
        and available("pointwise", problem.platform)
    )


def accepts_depthwise(problem: ConvolutionProblem) -> Verdict:
    """Whether a convolution is one of each channel by itself with kept filters that the kernel computes."""
    stride, _, dilation, _, _, groups = problem.geometry
    return (
        can_pack(problem)
        and is_float32(problem)
        and (groups == problem.image[1] == problem.filters[0] or Refused("it does not convolve each channel by itself"))
        and (groups >= LANES or Refused(f"{groups} channels are fewer than {LANES}"))
        and (problem.filters[2:] in ((3, 3), (5, 5)) or Refused("the filters are not of 3x3 or 5x5"))
        and ((stride[0] == stride[1] and {*dilation} == {1}) or Refused("strides differ, or it is dilated"))
        and (not problem.is_empty or Refused("there are no images"))
        and available("depthwise", problem.platform)
    )


POINTWISE = Kernel(
    "pointwise, packed filters",
    accepts_pointwise,
    available=functools.partial(available, "pointwise"),
    thresholds=lambda: {"least multiplications": LEAST_POINTWISE},
    packing=prepacked_convolution.define("pointwise", lambda size: [math.prod(size)]),
)
DEPTHWISE = Kernel(
    "depthwise, packed filters",
    accepts_depthwise,
    available=functools.partial(available, "depthwise"),
    thresholds=lambda: {"least channels": LANES},
    packing=prepacked_convolution.define("depthwise", lambda size: [*size[2:], size[0]]),
)


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
    return prepacked_convolution.call("pointwise", image, filters, bias, [], out.shape, other, then, numbers)


@op("lazy_runtime::depthwise_convolution", channels_last=True, parts=True, products=True)
def depthwise_convolution(
    image, filters, bias, size, stride, padding, dilation, groups, other=None, then=None, numbers=(), *, out
):
    """As `packed_convolution`, with filters of one channel each in the kernel's order."""
    geometry = [stride[0], list(padding)]
    return prepacked_convolution.call("depthwise", image, filters, bias, geometry, out.shape, other, then, numbers)
