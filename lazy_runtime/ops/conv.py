"""Convolutions, forward and backward; the backward products are jax's own transposes of the forward lowering."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from .matmul import precision
from .registry import op


def _tuple(value, n: int) -> tuple[int, ...]:
    value = tuple(value)
    return value * n if len(value) == 1 else value


@op("aten::convolution", "aten::convolution_overrideable")
def convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    n = weight.ndim - 2
    batched = x.ndim == n + 2
    if not batched:
        x = x[None]
    stride, padding, dilation = _tuple(stride, n), _tuple(padding, n), _tuple(dilation, n)
    if transposed:
        y = _transposed(x, weight, stride, padding, dilation, _tuple(output_padding, n), groups)
    else:
        y = _forward(x, weight, stride, padding, dilation, groups)
    if bias is not None:
        y = y + bias.reshape((-1,) + (1,) * n)
    return y if batched else y[0]


def _forward(x, weight, stride, padding, dilation, groups):
    n = weight.ndim - 2
    channels = x.shape[1]
    if groups == 1 and all(k == 1 for k in weight.shape[2:]):
        return _one_by_one(x, weight, stride, padding)
    if groups == channels and weight.shape[0] == channels and channels > 1:
        return _depthwise(x, weight, stride, padding, dilation)
    # channels last: the layout in which XLA's CPU convolution runs, and cancels between neighbours
    y = jax.lax.conv_general_dilated(
        jnp.moveaxis(x, 1, -1),
        jnp.transpose(weight, (*range(2, n + 2), 1, 0)),
        stride,
        [(p, p) for p in padding],
        rhs_dilation=dilation,
        dimension_numbers=_channels_last(n),
        feature_group_count=groups,
        precision=precision(x.dtype),
    )
    return jnp.moveaxis(y, -1, 1)


def _channels_last(n: int) -> jax.lax.ConvDimensionNumbers:
    spatial = tuple(range(1, n + 1))
    data = (0, n + 1, *spatial)
    return jax.lax.ConvDimensionNumbers(data, (n + 1, n, *range(n)), data)


def _one_by_one(x, weight, stride, padding):
    """A 1×1 convolution is a matrix product over the channels."""
    if any(padding):
        x = jnp.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])
    if any(s != 1 for s in stride):
        x = x[(slice(None), slice(None), *(slice(None, None, s) for s in stride))]
    y = jax.lax.dot_general(
        jnp.moveaxis(x, 1, -1),
        weight.reshape(weight.shape[:2]),
        (((x.ndim - 1,), (1,)), ((), ())),
        precision=precision(x.dtype),
    )
    return jnp.moveaxis(y, -1, 1)


def _depthwise(x, weight, stride, padding, dilation):
    """One filter per channel: a sum of shifted, scaled images, which XLA fuses into one loop. Its own grouped
    convolution is up to fifty times slower on the CPU."""
    n = weight.ndim - 2
    x = jnp.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])
    extent = [x.shape[2 + d] - dilation[d] * (weight.shape[2 + d] - 1) for d in range(n)]
    total = None
    for offset in np.ndindex(*weight.shape[2:]):
        window = tuple(
            slice(offset[d] * dilation[d], offset[d] * dilation[d] + extent[d], stride[d]) for d in range(n)
        )
        term = x[(slice(None), slice(None), *window)] * weight[(slice(None), 0, *offset)].reshape((-1,) + (1,) * n)
        total = term if total is None else total + term
    return total


def _transposed(x, weight, stride, padding, dilation, output_padding, groups):
    """The transposed convolution is the ordinary one of the stride-dilated input with the flipped filter."""
    n = weight.ndim - 2
    kernel = jnp.flip(weight, tuple(range(2, n + 2)))
    # (in, out / groups, ...) → (out, in / groups, ...)
    kernel = kernel.reshape(groups, weight.shape[0] // groups, weight.shape[1], *weight.shape[2:])
    kernel = jnp.swapaxes(kernel, 1, 2).reshape(groups * weight.shape[1], weight.shape[0] // groups, *weight.shape[2:])
    pads = []
    for d in range(n):
        reach = dilation[d] * (weight.shape[2 + d] - 1)
        pads.append((reach - padding[d], reach - padding[d] + output_padding[d]))
    y = jax.lax.conv_general_dilated(
        jnp.moveaxis(x, 1, -1),
        jnp.transpose(kernel, (*range(2, n + 2), 1, 0)),
        (1,) * n,
        pads,
        lhs_dilation=stride,
        rhs_dilation=dilation,
        dimension_numbers=_channels_last(n),
        feature_group_count=groups,
        precision=precision(x.dtype),
    )
    return jnp.moveaxis(y, -1, 1)


@op("aten::convolution_backward", "aten::convolution_backward_overrideable")
def convolution_backward(
    grad, x, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask
):
    def forward(x, weight):
        return convolution(x, weight, None, stride, padding, dilation, transposed, output_padding, groups)

    grad_x = grad_weight = grad_bias = None
    if output_mask[0]:
        (grad_x,) = jax.vjp(lambda x: forward(x, weight), x)[1](grad)
    if output_mask[1]:
        (grad_weight,) = jax.vjp(lambda weight: forward(x, weight), weight)[1](grad)
    if output_mask[2]:
        channel = grad.ndim - weight.ndim + 1
        grad_bias = jnp.sum(grad, tuple(d for d in range(grad.ndim) if d != channel))
    return grad_x, grad_weight, grad_bias
