"""Convolutions, forward and backward.

Three ways, by what was measured on the CPU (docs/architecture.md): a 1×1 convolution is a matrix product, the others
run in torch's oneDNN kernels through the ATen bridge, and where there is no bridge, and on every other platform, in
XLA's own convolution, whose gradients are jax's transposes of it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from .. import aten_bridge
from .matmul import precision
from .registry import op


def _tuple(value, n: int) -> tuple[int, ...]:
    value = tuple(value)
    return value * n if len(value) == 1 else value


@op("aten::convolution", "aten::convolution_overrideable")
def convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups, *, out):
    n = weight.ndim - 2
    batched = x.ndim == n + 2
    if not batched:
        x = x[None]
    shape = out.shape if batched else (1, *out.shape)
    geometry = _geometry(n, stride, padding, dilation, transposed, output_padding, groups)
    if _prefers_aten(out.device.platform, x, weight, geometry):
        y = aten_bridge.convolution(x, weight, shape, *geometry)
    else:
        y = _in_xla(x, weight, *geometry)
    if bias is not None:
        y = y + bias.reshape((-1,) + (1,) * n)
    return y if batched else y[0]


def _geometry(n: int, stride, padding, dilation, transposed, output_padding, groups) -> tuple:
    """The static arguments with one number per spatial dimension."""
    return (
        _tuple(stride, n),
        _tuple(padding, n),
        _tuple(dilation, n),
        transposed,
        _tuple(output_padding, n),
        groups,
    )


def _is_product(weight, geometry) -> bool:
    """Whether the convolution is a matrix product over the channels."""
    _stride, _padding, _dilation, transposed, _output_padding, groups = geometry
    return groups == 1 and not transposed and all(k == 1 for k in weight.shape[2:])


def _prefers_aten(platform: str, x, weight, geometry) -> bool:
    if platform != "cpu" or not aten_bridge.available() or x.size == 0 or weight.size == 0:
        return False
    if x.dtype == jnp.float64:  # oneDNN has no float64: torch unrolls the image, XLA does better unless it is grouped
        return geometry[-1] > 1
    return x.dtype in (jnp.float32, jnp.bfloat16, jnp.float16) and not _is_product(weight, geometry)


def _in_xla(x, weight, stride, padding, dilation, transposed, output_padding, groups):
    if transposed:
        return _transposed(x, weight, stride, padding, dilation, output_padding, groups)
    return _forward(x, weight, stride, padding, dilation, groups)


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
    grad, x, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask, *, base
):
    n = weight.ndim - 2
    batched = x.ndim == n + 2
    if not batched:
        grad, x = grad[None], x[None]
    geometry = _geometry(n, stride, padding, dilation, transposed, output_padding, groups)
    if _prefers_aten(base.device.platform, x, weight, geometry):
        grad_x, grad_weight = aten_bridge.convolution_backward(grad, x, weight, *output_mask[:2], *geometry)
    else:
        grad_x = grad_weight = None
        if output_mask[0]:
            (grad_x,) = jax.vjp(lambda x: _in_xla(x, weight, *geometry), x)[1](grad)
        if output_mask[1]:
            (grad_weight,) = jax.vjp(lambda weight: _in_xla(x, weight, *geometry), weight)[1](grad)
    grad_bias = jnp.sum(grad, (0, *range(2, n + 2))) if output_mask[2] else None
    return grad_x if grad_x is None or batched else grad_x[0], grad_weight, grad_bias
