"""Max pooling with windows at random places (FractionalMaxPool2d.cpp), and the inverse of max pooling."""

from __future__ import annotations

import itertools
import math

import jax.numpy as jnp
import torch

from .. import checks
from .pool import maximum
from .reduction import opmath
from .registry import op

aten = torch.ops.aten


def _starts(samples, size: int, out: int, kernel: int):
    """(batch, channels, out) where the windows of one dimension start."""
    last = size - kernel
    if out == 1:
        return jnp.full((*samples.shape, 1), last)
    alpha = jnp.asarray(last / (out - 1), samples.dtype)
    first = jnp.floor(samples * alpha)[..., None]
    starts = jnp.floor((jnp.arange(out - 1) + samples[..., None]) * alpha) - first
    return jnp.concatenate([starts.astype(jnp.int64), jnp.full((*samples.shape, 1), last)], -1)


def _fractional(x, kernel, samples, sizes):
    n = len(sizes)
    spatial = x.shape[-n:]
    images = x.reshape(samples.shape[0], samples.shape[1], -1)
    # of the samples of a plane the last is for the last dimension but in three dimensions, where the first is
    order = range(n) if n == 3 else reversed(range(n))
    starts = [
        _starts(samples[..., sample], size, out, window).reshape(
            *samples.shape[:2], *(out if d == e else 1 for e in range(n))
        )
        for d, (sample, size, out, window) in enumerate(zip(order, spatial, sizes, kernel, strict=True))
    ]

    def terms():
        for offset in itertools.product(*map(range, kernel)):
            place = jnp.zeros((), jnp.int64)
            for d in range(n):
                place = place * spatial[d] + starts[d] + offset[d]
            yield (
                jnp.take_along_axis(images, place.reshape(*images.shape[:2], -1), 2, mode="clip"),
                place.reshape(*images.shape[:2], -1),
            )

    best, index = maximum(terms())
    shape = (*x.shape[:-n], *sizes)
    return best.reshape(shape), index.reshape(shape)


@op("aten::fractional_max_pool2d", "aten::fractional_max_pool3d")
def fractional_max_pool(x, kernel_size, output_size, random_samples):
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
        return found.contiguous(memory_format=torch._prims_common.suggest_memory_format(x))
    return found


@op("aten::max_unpool2d", "aten::max_unpool3d", fallible=True, infer=_infer_unpool)
def max_unpool(x, indices, output_size, *rest):
    size = math.prod(output_size)
    volume = "x".join(map(str, output_size))
    message = f"(output volumes are of size {volume})"
    checks.in_range(indices, size, lambda n: RuntimeError(f"Found an invalid max index: {n} {message}"), lowest=0)
    n = len(output_size)
    return _scattered(x, indices, output_size, "set").reshape(*x.shape[:-n], *output_size)
