"""Convolutions, forward and backward. All work on channels-last images.

Which kernel computes one stands in `convolution_kernels.py`, and why in docs/kernels.md.
"""

from __future__ import annotations

import jax.numpy as jnp
import torch

from ...lowering.layout import ChannelsLast, logical, physical
from ..linalg import bfloat16_upcast
from ..registry import op
from .convolution_kernels import CONVOLUTION, gradients
from .convolution_problem import ConvolutionProblem, Geometry


def _infer(x, weight, bias, stride, padding, dilation, *rest):
    """On meta tensors, with checks of numbers that only the CPU kernel makes."""
    transposed, _, groups = rest
    fits = True
    if bias is not None and weight.ndim >= 3:  # of others torch says more
        fits = bias.shape == (weight.shape[1] * groups if transposed else weight.shape[0],)
    if min((*stride, *dilation)) < 1 or min(padding) < 0 or not fits:
        operands = (None if y is None else torch.zeros((), dtype=y.dtype).expand(y.shape) for y in (x, weight, bias))
        torch.ops.aten.convolution.default(*operands, stride, padding, dilation, *rest)
    return torch.ops.aten.convolution.default(x, weight, bias, stride, padding, dilation, *rest)


@op("aten::convolution", "aten::convolution_overrideable", channels_last=True, products=True, infer=_infer)
def convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups, *, out):
    n = weight.ndim - 2
    batched = x.ndim == n + 2
    x = physical(x if batched else x[None])
    dtype, platform = x.dtype, out.device.platform
    if bfloat16_upcast.is_wanted(platform, dtype):
        x, weight, bias = map(bfloat16_upcast.widened, (x, weight, bias))
    geometry = Geometry.of(n, stride, padding, dilation, transposed, output_padding, groups)
    problem = ConvolutionProblem.of(x, weight, geometry, platform, out.dtype)
    kernel = CONVOLUTION.choose(problem)
    assert kernel.lower is not None
    y = kernel.lower(x, weight, bias, out.shape if batched else (1, *out.shape), problem).astype(dtype)
    return ChannelsLast(y) if batched else logical(ChannelsLast(y))[0]


@op("aten::convolution_backward", "aten::convolution_backward_overrideable", channels_last=True, products=True)
def convolution_backward(
    grad,
    x,
    weight,
    bias_sizes,
    stride,
    padding,
    dilation,
    transposed,
    output_padding,
    groups,
    output_mask,
    *,
    input_spec,
):
    weight = logical(weight)
    n = weight.ndim - 2
    batched = x.ndim == n + 2
    if not batched:
        grad, x = grad[None], x[None]
    grad, x = physical(grad), physical(x)
    platform, dtype = input_spec.device.platform, grad.dtype
    if bfloat16_upcast.is_wanted(platform, dtype):
        grad, x, weight = map(bfloat16_upcast.widened, (grad, x, weight))
    geometry = Geometry.of(n, stride, padding, dilation, transposed, output_padding, groups)
    problem = ConvolutionProblem.of(x, weight, geometry, platform, dtype)
    grad_x, grad_weight = gradients(grad, x, weight, problem, output_mask[:2])
    grad_bias = jnp.sum(grad, tuple(range(n + 1))) if output_mask[2] else None
    grad_x, grad_weight, grad_bias = (
        None if made is None else made.astype(dtype) for made in (grad_x, grad_weight, grad_bias)
    )
    if grad_x is not None:
        grad_x = ChannelsLast(grad_x) if batched else logical(ChannelsLast(grad_x))[0]
    return grad_x, grad_weight, grad_bias
