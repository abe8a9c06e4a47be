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
from .. import kernels
from ..kernels import Kernel, Refused, Verdict
from .convolution_problem import ConvolutionProblem, is_2d, is_float32, is_gradient_of

#: Channels in a vector of the processor's, of which the kernel needs one.
LANES = 16


def accepts(problem: ConvolutionProblem) -> Verdict:
    """Whether the kernel computes the gradient, and faster than oneDNN's, which is as fast with filters of 3×3."""
    stride, _, dilation, _, _, groups = problem.geometry
    return (
        is_gradient_of(problem, "filters")
        and is_2d(problem)
        and is_float32(problem)
        and (0 not in problem.image or Refused("there are no images"))
        and (groups == problem.image[1] == problem.filters[0] or Refused("it does not convolve each channel by itself"))
        and (groups >= LANES or Refused(f"{groups} channels are fewer than {LANES}"))
        and (problem.filters[2:] in ((5, 5), (7, 7)) or Refused("the filters are not of 5x5 or 7x7"))
        and (len({*stride}) == 1 == max(dilation) or Refused("strides differ, or it is dilated"))
        and available(problem.platform)
    )


def available(platform: str) -> Verdict:
    """Whether the kernel is there."""
    return (
        kernels.on_cpu(platform)
        and (config.direct_convolutions() or Refused("XLA_CPU_DIRECT_CONVOLUTIONS is off"))
        and kernels.has_wide_vectors()
        and kernels.works(_is_built, "depthwise_gradient")
    )


@functools.cache
def _is_built() -> bool:
    # measured with vectors of 512 bits, which keep the sums in registers
    if not kernels.has_wide_vectors():
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


def _lower(grad: Any, x: Any, weight: Any, problem: ConvolutionProblem, wanted: tuple[bool, bool]) -> Any:
    return None, of_filters(grad, x, weight, problem.geometry)


KERNEL = Kernel("depthwise, filters", accepts, _lower, available, lambda: {"least channels": LANES})
