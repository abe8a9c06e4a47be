"""Sampling of images and volumes at positions that a grid gives (GridSampler.h, GridSamplerKernel.cpp)."""

from __future__ import annotations

import functools
import itertools
import operator

import jax
import jax.numpy as jnp

from ...lowering.layout import ChannelsLast, physical
from ..indexing.reduction import opmath
from ..registry import op

BILINEAR, NEAREST, BICUBIC = 0, 1, 2  # at::native::GridSamplerInterpolation
ZEROS, BORDER, REFLECTION = 0, 1, 2  # at::native::GridSamplerPadding


def _positions(grid, size: int, align_corners: bool):
    """Positions in pixels for a grid's [-1, 1]."""
    return (grid + 1) / 2 * (size - 1) if align_corners else ((grid + 1) * size - 1) / 2


def _clipped(x, size: int):
    """Into the image, nan to its start. No gradient at its borders, in contrast to `jnp.clip`."""
    return jnp.where(x > 0, jnp.where(x < size - 1, x, size - 1), 0)


def _reflected(x, size: int, align_corners: bool):
    low, high = (0, 2 * (size - 1)) if align_corners else (-1, 2 * size - 1)
    if low == high:
        return jnp.zeros_like(x)
    least, span = low / 2, (high - low) / 2
    x = x - least
    x = jnp.where(x < 0, -x, x)
    rest, flips = jax.lax.rem(x, jnp.full_like(x, span)), jnp.floor(x / span)
    return jnp.where(jax.lax.rem(flips, jnp.full_like(x, 2)) == 0, rest + least, span - rest + least)


def _padded(x, size: int, padding: int, align_corners: bool):
    """Positions that padding other than with zeros has brought into the image."""
    if padding == ZEROS:
        return x
    return _clipped(_reflected(x, size, align_corners) if padding == REFLECTION else x, size)


def _pick(image, places):
    """Pixels (batch, out..., channels) of an image (batch, space..., channels) at whole positions, given as floats, per
    dimension; zeros outside of it.
    """
    inside, index = True, []
    for d, place in enumerate(places):
        size = image.shape[1 + d]
        inside = inside & (place >= 0) & (place < size)
        index.append(jnp.clip(jnp.nan_to_num(place), 0, size - 1).astype(jnp.int32))
    batch = jnp.arange(image.shape[0]).reshape((-1,) + (1,) * (index[0].ndim - 1))
    return jnp.where(jnp.asarray(inside)[..., None], image[(batch, *index)], 0)


def _cubic(t):
    """Weights of the four pixels around a position, by cubic convolution with a = -0.75."""
    a = -0.75

    def near(x):
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x):
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return far(t + 1), near(t), near(1 - t), far(2 - t)


def _sample(image, grid, mode: int, padding: int, align_corners: bool):
    """(batch, out..., channels) from (batch, space..., channels) and (batch, out..., dimensions)."""
    spatial = image.shape[1:-1]
    # the grid's last dimension counts from the last of space
    at = [_positions(grid[..., -1 - d], size, align_corners) for d, size in enumerate(spatial)]
    pad = functools.partial(_padded, padding=padding, align_corners=align_corners)
    if mode != BICUBIC:
        at = [pad(x, size) for x, size in zip(at, spatial, strict=True)]
    if mode == NEAREST:
        return _pick(image, [jnp.round(jax.lax.stop_gradient(x)) for x in at])
    first = [jnp.floor(jax.lax.stop_gradient(x)) for x in at]
    part = [x - floor for x, floor in zip(at, first, strict=True)]
    if mode == BICUBIC:
        places = [[pad(x + k, size) for k in range(-1, 3)] for x, size in zip(first, spatial, strict=True)]
        weights = [_cubic(t) for t in part]
    else:
        places = [[x, x + 1] for x in first]
        weights = [(1 - t, t) for t in part]
    if mode == BICUBIC:  # one gather of all pixels: as many as sixteen take XLA long to compile
        rows, columns = (jnp.stack(each) for each in places)
        down, across = (jnp.stack(each)[..., None] for each in weights)
        rows, columns = jnp.broadcast_arrays(rows[:, None], columns[None])
        pick = jax.vmap(jax.vmap(lambda *place: _pick(image, place)))
        pixels = pick(rows, columns)
        return jnp.sum(jnp.sum(pixels * across, 1) * down, 0)
    terms = []
    for corner in itertools.product(range(2), repeat=len(spatial)):
        weight = functools.reduce(operator.mul, (each[k] for each, k in zip(weights, corner, strict=True)))
        terms.append(_pick(image, [each[k] for each, k in zip(places, corner, strict=True)]) * weight[..., None])
    return functools.reduce(operator.add, terms)


@op("aten::grid_sampler_2d", "aten::grid_sampler_3d", channels_last=True)
def grid_sampler(x, grid, mode, padding, align_corners):
    image = physical(x)
    return ChannelsLast(_sample(opmath(image), _plain(grid), mode, padding, align_corners).astype(image.dtype))


def _plain(grid):
    """A grid in its own order: its channels are last already. Which pixels it selects must not hang on 16 bits."""
    return opmath(jnp.moveaxis(grid.physical, -1, 1) if isinstance(grid, ChannelsLast) else grid)


@op("aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward", channels_last=True)
def grid_sampler_backward(grad, x, grid, mode, padding, align_corners, output_mask, *, out):
    """Torch's kernels give the grid's gradient whether it was asked for or not."""
    kind = physical(x).dtype
    image, grid, grad = opmath(physical(x)), _plain(grid), opmath(physical(grad))
    grad_x = grad_grid = None
    if out[0] is not None:
        _, back = jax.vjp(lambda image: _sample(image, grid, mode, padding, align_corners), image)
        grad_x = ChannelsLast(back(grad)[0].astype(kind))
    if out[1] is not None:
        _, back = jax.vjp(lambda grid: _sample(image, grid, mode, padding, align_corners), grid)
        grad_grid = back(grad)[0].astype(kind)
    return grad_x, grad_grid
