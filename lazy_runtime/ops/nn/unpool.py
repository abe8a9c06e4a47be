"""Max pooling with windows at random places (FractionalMaxPool2d.cpp), and the inverse of max pooling."""

from __future__ import annotations

import math

import jax.numpy as jnp
import torch

from ...compat.tracing import suggest_memory_format
from ...lowering import checks
from ...lowering.argmax import argmax
from ..gradients import with_gradient
from ..indexing.indexing import IN_BOUNDS
from ..indexing.reduction import opmath
from ..registry import op

aten = torch.ops.aten


def _starts(samples, size: int, out: int, kernel: int):
    """(batch, channels, out) where the windows of one dimension start."""
    last = jnp.full((*samples.shape, 1), size - kernel)
    if out == 1:
        return last
    alpha = jnp.asarray((size - kernel) / (out - 1), samples.dtype)
    first = (samples * alpha).astype(jnp.int64)[..., None]
    starts = ((jnp.arange(out - 1).astype(samples.dtype) + samples[..., None]) * alpha).astype(jnp.int64) - first
    return jnp.concatenate([starts, last], -1)


def _fractional(x, kernel, samples, sizes):
    n = len(sizes)
    spatial = x.shape[-n:]
    planes = (1, *x.shape[:-n])[-2:]  # without a batch the samples may be of more images than there are
    samples = samples[: planes[0], : planes[1]]
    # a plane's first sample is for the last of two dimensions, but for the first of three
    order = range(n) if n == 3 else reversed(range(n))
    place = jnp.zeros((), jnp.int64)
    for d, sample in enumerate(order):
        starts = _starts(samples[..., sample], spatial[d], sizes[d], kernel[d])
        at = starts.reshape(*planes, *(-1 if d == e else 1 for e in range(n)), *(1,) * n)
        at = at + jnp.arange(kernel[d]).reshape(*(-1 if d == e else 1 for e in range(n)))
        place = place * spatial[d] + at
    count, window = math.prod(sizes), math.prod(kernel)
    place = jnp.broadcast_to(place, (*planes, *sizes, *kernel)).reshape(*planes, count, window)
    images = x.reshape(*planes, math.prod(spatial))
    parts = jnp.take_along_axis(images, place.reshape(*planes, count * window), 2, mode=IN_BOUNDS).reshape(place.shape)
    # the first of equals, but the last nan
    is_nan = jnp.isnan(parts)
    last = window - 1 - argmax(is_nan[..., ::-1], -1)
    chosen = jnp.where(is_nan.any(-1), last, argmax(parts, -1))[..., None]
    shape = (*x.shape[:-n], *sizes)
    return [jnp.take_along_axis(each, chosen, -1).reshape(shape) for each in (parts, place)]


@op("aten::fractional_max_pool2d", "aten::fractional_max_pool3d")
def fractional_max_pool(x, kernel_size, output_size, random_samples, *, out):
    if 0 in out[0].shape:
        return jnp.zeros(out[0].shape, x.dtype), jnp.zeros(out[1].shape, jnp.int64)
    return _fractional(x, kernel_size, random_samples, output_size)


def _like_input(grad, x, *rest):
    return x.new_empty(x.shape)


@op("aten::fractional_max_pool2d_backward", "aten::fractional_max_pool3d_backward", infer=_like_input)
def fractional_max_pool_backward(grad, x, kernel_size, output_size, indices):
    n = len(output_size)
    return _scattered(grad, indices, x.shape[-n:], "add").reshape(x.shape)


def _scattered(values, indices, spatial, how: str):
    """(planes, space) with values at flat indices."""
    n = len(spatial)
    planes = math.prod(values.shape[:-n])
    values, indices = (y.reshape(planes, math.prod(y.shape[-n:])) for y in (values, indices))
    total = jnp.zeros((planes, math.prod(spatial)), opmath(values).dtype if how == "add" else values.dtype)
    place = total.at[jnp.arange(planes)[:, None], indices]
    return (place.add(opmath(values)) if how == "add" else place.set(values)).astype(values.dtype)


def _infer_unpool(x, indices, output_size, *rest):
    if rest:
        return aten.max_unpool3d.default(x, indices, output_size, *rest)
    if x.is_cpu:
        return aten.max_unpool2d.default(x, indices, output_size)
    found = aten.max_unpool2d.default(x, indices, output_size)
    if x.dim() == 4 and found.is_contiguous():  # the CPU kernel's result is in the format of the input
        return found.contiguous(memory_format=suggest_memory_format(x))
    return found


@op("aten::max_unpool2d", "aten::max_unpool3d", fallible=True, infer=_infer_unpool)
def max_unpool(x, indices, output_size, *rest):
    size = math.prod(output_size)
    volume = "x".join(map(str, output_size))
    message = f"(output volumes are of size {volume})"
    checks.in_range(indices, size, lambda n: RuntimeError(f"Found an invalid max index: {n} {message}"), lowest=0)
    n = len(output_size)

    def unpool(x, indices):
        return _scattered(x, indices, output_size, "set").reshape(*x.shape[:-n], *output_size)

    def gradient(cotangent, _, x, indices):  # of all that are written to one place, too
        flat, places = (y.reshape(*x.shape[:-n], -1) for y in (cotangent, indices))
        return (jnp.take_along_axis(flat, places, -1, mode=IN_BOUNDS).reshape(x.shape),)

    return with_gradient(unpool, gradient)(x, indices)
