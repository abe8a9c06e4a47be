"""Convolutions, forward and backward.

Four ways, by what was measured on the CPU (docs/measurements.md): a 1×1 convolution of float32 is a matrix product
(`matmul.py`), with many pixels on AMD's processors aside, one of 3×3 with many pixels goes by Winograd's algorithm
(`winograd.py`), the others run in torch's oneDNN kernels through the ATen bridge, and where there is no bridge, and on
every other platform, in XLA's own convolution, whose gradients are jax's transposes of it. All work on channels-last
images.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ...common import config
from ...lowering import aten_bridge, precision
from ...lowering.layout import ChannelsLast, Opaque, Transposed, logical, physical
from ..indexing.reduction import opmath
from ..linalg import bfloat16_upcast, matmul, packed
from ..registry import op
from . import depthwise_gradient, winograd


class Geometry(NamedTuple):
    """The static arguments of `aten::convolution`, one number per spatial dimension."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int


def _geometry(n: int, stride, padding, dilation, transposed, output_padding, groups) -> Geometry:
    def spread(value) -> tuple[int, ...]:
        value = tuple(value)
        return value * n if len(value) == 1 else value

    return Geometry(spread(stride), spread(padding), spread(dilation), transposed, spread(output_padding), groups)


def _prefers_aten(platform: str, x, weight, geometry: Geometry) -> bool:
    if platform != "cpu" or x.size == 0 or weight.size == 0 or not aten_bridge.available():
        return False
    if x.dtype == jnp.float64:  # oneDNN has no float64: torch unrolls the image, XLA does better unless it is grouped
        return geometry.groups > 1
    if _is_product(weight, geometry, platform):
        if x.dtype == jnp.float32:
            return config.products_are_onednns() and _pixels_taken(x, geometry) >= LEAST_PIXELS
        return x.dtype == jnp.bfloat16  # of which torch's products are the faster ones (`matmul.py`)
    return x.dtype in (jnp.float32, jnp.bfloat16, jnp.float16)


def _is_product(weight, geometry: Geometry, platform: str) -> bool:
    """Whether the convolution is a matrix product over the channels. One of some of the pixels is none on a GPU, where
    XLA (jaxlib 0.11.2) takes their selection into its Triton kernel for the product and ends the process over it.
    """
    is_whole = platform == "cpu" or (set(geometry.stride) == {1} and not any(geometry.padding))
    return is_whole and geometry.groups == 1 and not geometry.transposed and all(k == 1 for k in weight.shape[2:])


#: Of fewer pixels the product is the faster one on AMD too, whoever computes it.
LEAST_PIXELS = 512


def _pixels_taken(x, geometry: Geometry) -> int:
    """How many pixels a 1×1 convolution gives."""
    along = zip(x.shape[1:-1], geometry.padding, geometry.stride, strict=True)
    return x.shape[0] * math.prod((size + 2 * padding - 1) // stride + 1 for size, padding, stride in along)


#: Elements of a weight from which on it is seen that `aten::convolution` copies it: up to half of the time of a layer
#: with few pixels and many channels.
LEAST_COPIED = 1 << 18


def _is_copied(weight, geometry: Geometry) -> bool:
    """Whether torch's convolution of channels-last images would first bring the weight into that order, in vain
    (`layout.Opaque`).
    """
    is_plain = not isinstance(weight, ChannelsLast) and weight.ndim == 4 and max(weight.shape[2:]) > 1
    return is_plain and weight.size >= LEAST_COPIED and geometry.groups == 1 and not geometry.transposed


_WITHOUT_KEPT_FILTERS = functools.partial(winograd.pays, kept=False)


def _is_for_winograd(
    platform: str,
    image: ChannelsLast,
    weight,
    geometry: Geometry,
    pays: Callable[..., bool] = _WITHOUT_KEPT_FILTERS,
) -> bool:
    if weight.ndim != 4 or geometry.transposed or image.dtype != weight.dtype:
        return False
    _, padding, dilation, _, _, groups = geometry
    where = {"dtype": image.dtype, "platform": platform}
    return pays(weight.shape, image.shape, geometry.stride, padding, dilation, groups, **where)


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
    dtype = x.dtype
    if bfloat16_upcast.is_wanted(out.device.platform, dtype):
        x, weight, bias = map(bfloat16_upcast.widened, (x, weight, bias))
    geometry = _geometry(n, stride, padding, dilation, transposed, output_padding, groups)
    shape = out.shape if batched else (1, *out.shape)
    if _is_for_winograd(out.device.platform, ChannelsLast(x), weight, geometry):
        filters = winograd.transform(logical(weight))
        y, bias = winograd.convolve(ChannelsLast(x), filters, logical(bias), geometry.padding, shape).physical, None
    elif _prefers_aten(out.device.platform, x, weight, geometry):
        like = ChannelsLast.described(shape, x.dtype)
        if _is_copied(weight, geometry) and packed.available(out.device.platform, out.dtype):
            where = [geometry.padding, geometry.stride, geometry.dilation, 1]
            arguments = [ChannelsLast(x), Opaque(weight), None, *where, "none", [], None]
            (made,) = aten_bridge.call("mkldnn::_convolution_pointwise", arguments, [like])
        else:
            (made,) = aten_bridge.call("aten::convolution", [ChannelsLast(x), weight, None, *geometry], [like])
        y = made.physical
    else:
        y = _in_xla(x, logical(weight), geometry, out.device.platform)
    if bias is not None:
        y = y + bias
    y = y.astype(dtype)
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
    geometry = _geometry(n, stride, padding, dilation, transposed, output_padding, groups)
    platform, dtype = input_spec.device.platform, grad.dtype
    if bfloat16_upcast.is_wanted(platform, dtype):
        grad, x, weight = map(bfloat16_upcast.widened, (grad, x, weight))
    fast_grad_x = _grad_by_winograd(grad, x, weight, geometry, platform) if output_mask[0] else None
    fast_grad_weight = _grad_by_kernel(grad, x, weight, geometry, platform) if output_mask[1] else None
    mask = [output_mask[0] and fast_grad_x is None, output_mask[1] and fast_grad_weight is None, False]
    if _prefers_aten(platform, x, weight, geometry) and any(mask):
        images, results = [ChannelsLast(grad), ChannelsLast(x)], [ChannelsLast(x), weight, None]
        grad_x, grad_weight, _ = aten_bridge.call(
            "aten::convolution_backward",
            [*images, weight, None, *geometry, mask],
            [like if wanted else None for like, wanted in zip(results, mask, strict=True)],
        )
        grad_x = None if grad_x is None else grad_x.physical
    elif _is_product(weight, geometry, platform):
        grad_x, grad_weight = _one_by_one_backward(grad, x, weight, geometry, mask, platform)
    else:
        grad_x = grad_weight = None
        if mask[0]:
            (grad_x,) = jax.vjp(lambda x: _in_xla(x, weight, geometry, platform), x)[1](grad)
        if mask[1] and platform != "cpu" and _is_depthwise(x, weight, geometry):
            grad_weight = _depthwise_grad_weight(grad, x, weight, geometry)
        elif mask[1]:
            (grad_weight,) = jax.vjp(lambda weight: _in_xla(x, weight, geometry, platform), weight)[1](grad)
    grad_x = grad_x if fast_grad_x is None else fast_grad_x
    grad_weight = grad_weight if fast_grad_weight is None else fast_grad_weight
    grad_bias = jnp.sum(grad, tuple(range(n + 1))) if output_mask[2] else None
    grad_x, grad_weight, grad_bias = (
        None if made is None else made.astype(dtype) for made in (grad_x, grad_weight, grad_bias)
    )
    if grad_x is not None:
        grad_x = ChannelsLast(grad_x) if batched else logical(ChannelsLast(grad_x))[0]
    return grad_x, grad_weight, grad_bias


def _grad_by_winograd(grad, x, weight, geometry: Geometry, platform: str):
    """The gradient of x, or None if it is not for that. It is a convolution too, with the filters turned."""
    image = ChannelsLast(x)
    if not _is_for_winograd(platform, image, weight, geometry) or max(geometry.padding) > 2:
        return None
    padding = [2 - padded for padded in geometry.padding]
    filters = winograd.transform(weight, backward=True)
    return winograd.convolve(ChannelsLast(grad), filters, None, padding, image.shape).physical


def _grad_by_kernel(grad, x, weight, geometry: Geometry, platform: str):
    """The gradient of the weight, or None if no kernel of ours is for that."""
    if depthwise_gradient.pays(x, weight, geometry, platform):
        return depthwise_gradient.of_filters(grad, x, weight, geometry)
    image = ChannelsLast(x)
    if _is_for_winograd(platform, image, weight, geometry, winograd.gradient_pays):
        return winograd.gradient(ChannelsLast(grad), image, geometry.padding)
    return None


# ---- the order that torch's kernels want a weight in


_library = torch.library.Library("lazy_runtime", "FRAGMENT")
_library.define("channels_last(Tensor weight) -> Tensor")
_library.impl("channels_last", lambda weight: torch.empty_like(weight), "Meta")


def wants_channels_last(platform: str, weight: torch.Tensor, transposed: bool) -> bool:
    """Whether a weight that is kept from call to call is better kept channels last: the kernels bring any other order
    into theirs at each call, which takes a third of the time of a layer with few pixels and many channels.
    """
    if platform != "cpu" or transposed or weight.dim() != 4 or not aten_bridge.available():
        return False
    return weight.dtype in (torch.float32, torch.bfloat16) and max(weight.shape[2:]) > 1


@op("lazy_runtime::channels_last", channels_last=True)
def channels_last(weight):
    """The same weight, channels last in memory."""
    return ChannelsLast(physical(weight))


# ---- in XLA; x and the result have their channels last


def _in_xla(x, weight, geometry: Geometry, platform: str):
    if geometry.transposed:
        return _transposed(x, weight, geometry)
    if _is_product(weight, geometry, platform):
        return _one_by_one(x, weight, geometry, platform)
    if _is_depthwise(x, weight, geometry):
        return _depthwise(x, weight, geometry)
    return _general(x, weight, geometry.stride, [(p, p) for p in geometry.padding], geometry)


def _general(x, weight, stride, padding, geometry: Geometry, **options: Any):
    n = weight.ndim - 2
    data = (0, n + 1, *range(1, n + 1))
    return jax.lax.conv_general_dilated(
        x,
        jnp.transpose(weight, (*range(2, n + 2), 1, 0)),
        stride,
        padding,
        rhs_dilation=geometry.dilation,
        dimension_numbers=jax.lax.ConvDimensionNumbers(data, (n + 1, n, *range(n)), data),
        feature_group_count=geometry.groups,
        precision=precision.of(x.dtype),
        **options,
    )


def _one_by_one(x, weight, geometry: Geometry, platform: str):
    """A 1×1 convolution is a matrix product over the channels."""
    return matmul.linear_product(_pixels(x, geometry), weight.reshape(weight.shape[:2]), platform)


def _one_by_one_backward(grad, x, weight, geometry: Geometry, wanted, platform: str):
    """The gradients of the image and the weight, None where they are not wanted."""
    pixels, scatter = jax.vjp(lambda x: _pixels(x, geometry), x)
    rows, filters = grad.reshape(-1, grad.shape[-1]), weight.reshape(weight.shape[:2])
    grad_x = grad_weight = None
    if wanted[0]:
        (grad_x,) = scatter(matmul.of_matrices(rows, filters, platform).reshape(pixels.shape))
    if wanted[1]:
        taken = pixels.reshape(-1, pixels.shape[-1])
        grad_weight = matmul.of_matrices(Transposed(rows), taken, platform).reshape(weight.shape)
    return grad_x, grad_weight


def _pixels(x, geometry: Geometry):
    """Those that a 1×1 convolution takes: padded, and every so many of them."""
    if any(geometry.padding):
        x = jnp.pad(x, [(0, 0), *((p, p) for p in geometry.padding), (0, 0)])
    if any(s != 1 for s in geometry.stride):
        x = x[(slice(None), *(slice(None, None, s) for s in geometry.stride))]
    return x


def _is_depthwise(x, weight, geometry: Geometry) -> bool:
    """Whether each channel is convolved by itself, with one filter."""
    return not geometry.transposed and 1 < geometry.groups == x.shape[-1] == weight.shape[0]


def _depthwise(x, weight, geometry: Geometry):
    """One filter per channel: a sum of shifted, scaled images, which XLA fuses into one loop. Its own grouped
    convolution is up to fifty times slower on the CPU.
    """
    dtype = x.dtype
    weight = opmath(weight)
    total = None
    for offset, shifted in _shifted(opmath(x), weight, geometry):
        term = shifted * weight[(slice(None), 0, *offset)]
        total = term if total is None else total + term
    assert total is not None
    return total.astype(dtype)


def _depthwise_grad_weight(grad, x, weight, geometry: Geometry):
    """The gradient of the filters, all of whose elements are sums that one pass over the images makes."""
    grad = opmath(grad)
    terms = tuple(shifted * grad for _, shifted in _shifted(opmath(x), weight, geometry))
    zeros = (jnp.zeros((), grad.dtype),) * len(terms)
    sums = jax.lax.reduce(terms, zeros, lambda a, b: tuple(map(jnp.add, a, b)), tuple(range(grad.ndim - 1)))
    return jnp.stack(sums, 1).reshape(weight.shape)


def _shifted(x, weight, geometry: Geometry):
    """(position in a filter, the pixels that it meets) for each of its elements."""
    n = weight.ndim - 2
    stride, dilation = geometry.stride, geometry.dilation
    x = jnp.pad(x, [(0, 0), *((p, p) for p in geometry.padding), (0, 0)])
    extent = [x.shape[1 + d] - dilation[d] * (weight.shape[2 + d] - 1) for d in range(n)]
    for offset in np.ndindex(*weight.shape[2:]):
        window = tuple(slice(offset[d] * dilation[d], offset[d] * dilation[d] + extent[d], stride[d]) for d in range(n))
        yield offset, x[(slice(None), *window)]


def _transposed(x, weight, geometry: Geometry):
    """The transposed convolution is the ordinary one of the stride-dilated input with the flipped filter."""
    n, groups = weight.ndim - 2, geometry.groups
    kernel = jnp.flip(weight, tuple(range(2, n + 2)))
    # (in, out / groups, ...) → (out, in / groups, ...)
    kernel = kernel.reshape(groups, weight.shape[0] // groups, weight.shape[1], *weight.shape[2:])
    kernel = jnp.swapaxes(kernel, 1, 2).reshape(groups * weight.shape[1], weight.shape[0] // groups, *weight.shape[2:])
    pads = []
    for d in range(n):
        reach = geometry.dilation[d] * (weight.shape[2 + d] - 1)
        pads.append((reach - geometry.padding[d], reach - geometry.padding[d] + geometry.output_padding[d]))
    return _general(x, kernel, (1,) * n, pads, geometry, lhs_dilation=geometry.stride)
