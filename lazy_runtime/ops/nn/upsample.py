"""Resampling of images: nearest, linear, cubic, with and without antialiasing, forward and backward.

Along each dimension a result is a weighted sum of a few inputs, its taps. What is read and with which weight does not
depend on data, so it is computed here as ATen does (UpSample.h, UpSampleKernel.cpp), and a gradient is the sum over the
taps read the other way round: no scatter, which is serial on the CPU.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from ...lowering.layout import ChannelsLast, axis
from ..indexing.reduction import opmath
from ..registry import op

#: A dimension with more taps than this is a matrix product.
_MOST_TAPS = 8


class Taps(NamedTuple):
    """What each output position reads along one dimension.

    Attributes:
        positions: (out, k) input positions.
        weight: (out, k) their weights; None where all are 1 and k is 1.
        size: input positions in all.
    """

    positions: np.ndarray
    weight: np.ndarray | None
    size: int

    def transposed(self) -> Taps:
        """For each input position the outputs that read it, with their weights."""
        weight = np.ones(self.positions.shape, np.float32) if self.weight is None else self.weight
        out, count = self.positions.shape
        used = np.flatnonzero(weight)
        source, target = np.arange(out).repeat(count)[used], self.positions.reshape(-1)[used]
        order = np.argsort(target, kind="stable")
        source, target, weight = source[order], target[order], weight.reshape(-1)[used][order]
        counts = np.bincount(target, minlength=self.size)
        place = np.arange(len(target)) - (np.cumsum(counts) - counts)[target]
        shape = (self.size, max(1, counts.max(initial=0)))
        index, weights = np.zeros(shape, np.int32), np.zeros(shape, weight.dtype)
        index[target, place], weights[target, place] = source, weight
        return Taps(index, weights, out)


def _along(x, taps: Taps, dim: int):
    """The sums over the taps along an axis of `x`, which is in the dtype to compute in."""
    index, weight, size = taps
    if weight is None:
        return jnp.take(x, index[:, 0], dim, mode="clip")
    weight = weight.astype(x.dtype)
    if index.shape[1] > _MOST_TAPS:
        chosen = jnp.asarray(index)[..., None] == jnp.arange(size, dtype=index.dtype)
        matrix = jnp.sum(jnp.where(chosen, jnp.asarray(weight)[..., None], 0), 1)
        return jnp.moveaxis(jnp.tensordot(x, matrix, ((dim,), (1,)), precision="highest"), -1, dim)
    spread = (-1,) + (1,) * (x.ndim - 1 - dim)
    terms = (jnp.take(x, index[:, k], dim, mode="clip") * weight[:, k].reshape(spread) for k in range(index.shape[1]))
    return functools.reduce(jnp.add, terms)


def _resample(x, taps: list[Taps], each: Callable = _along):
    """Resamples the dimensions after the first two, the last one first. `x`: an array or `ChannelsLast`."""
    values = x.physical if isinstance(x, ChannelsLast) else x
    dtype, values = values.dtype, opmath(values)
    for dim in reversed(range(2, x.ndim)):
        values = each(values, taps[dim - 2], axis(dim, x.ndim) if isinstance(x, ChannelsLast) else dim)
    values = values.astype(dtype)
    return ChannelsLast(values) if isinstance(x, ChannelsLast) else values


def _kind(x) -> np.dtype:
    """The dtype in which ATen computes positions and weights for `x`."""
    return np.dtype(np.float64 if x.dtype == np.float64 else np.float32)


def _each(make: Callable[..., Taps], spatial, sizes, scales, *arguments) -> list[Taps]:
    scales = [*scales, *[None] * (len(sizes) - len(scales))]
    return [make(size, out, scale, *arguments) for size, out, scale in zip(spatial, sizes, scales, strict=True)]


# ---- nearest


def _nearest(size: int, out: int, scale: float | None, exact: bool) -> Taps:
    ratio = np.float32(1 / scale) if scale else np.float32(size) / np.float32(out)
    at = np.arange(out, dtype=np.float32) + np.float32(0.5 if exact else 0)
    index = np.minimum(np.floor(at * ratio).astype(np.int32), size - 1)
    return Taps(index[:, None], None, size)


@op(*(f"aten::upsample_nearest{n}d" for n in (1, 2, 3)), channels_last=True)
def upsample_nearest(x, output_size, *scales):
    return _resample(x, _each(_nearest, x.shape[2:], output_size, scales, False))


@op(*(f"aten::_upsample_nearest_exact{n}d" for n in (1, 2, 3)), channels_last=True)
def upsample_nearest_exact(x, output_size, *scales):
    return _resample(x, _each(_nearest, x.shape[2:], output_size, scales, True))


def _back(grad, taps: list[Taps]):
    return _resample(grad, [each.transposed() for each in taps])


@op(*(f"aten::upsample_nearest{n}d_backward" for n in (1, 2, 3)), channels_last=True)
def upsample_nearest_backward(grad, output_size, input_size, *scales):
    return _back(grad, _each(_nearest, input_size[2:], output_size, scales, False))


@op(*(f"aten::_upsample_nearest_exact{n}d_backward" for n in (1, 2, 3)), channels_last=True)
def upsample_nearest_exact_backward(grad, output_size, input_size, *scales):
    return _back(grad, _each(_nearest, input_size[2:], output_size, scales, True))


# ---- linear, cubic and Lanczos


def _ratio(size: int, out: int, scale: float | None, align_corners: bool, kind: np.dtype) -> np.floating:
    """Input positions from one output position to the next."""
    if align_corners:
        return kind.type(size - 1) / kind.type(out - 1) if out > 1 else kind.type(0)
    return kind.type(1 / scale) if scale else kind.type(size) / kind.type(out)


def _positions(size: int, out: int, scale: float | None, align_corners: bool, kind: np.dtype) -> np.ndarray:
    at, ratio = np.arange(out, dtype=kind), _ratio(size, out, scale, align_corners, kind)
    return at * ratio if align_corners else (at + kind.type(0.5)) * ratio - kind.type(0.5)


def _linear(size: int, out: int, scale: float | None, align_corners: bool, kind: np.dtype) -> Taps:
    if size == out:
        return Taps(np.arange(out, dtype=np.int32)[:, None], None, size)
    position = np.maximum(_positions(size, out, scale, align_corners, kind), 0)
    index = np.minimum(np.floor(position).astype(np.int32), size - 1)
    weight = np.clip(position - index.astype(kind), 0, 1)
    return Taps(np.stack([index, np.minimum(index + 1, size - 1)], 1), np.stack([1 - weight, weight], 1), size)


def _cubic(size: int, out: int, scale: float | None, align_corners: bool, kind: np.dtype) -> Taps:
    if size == out:
        return Taps(np.arange(out, dtype=np.int32)[:, None], None, size)
    position = _positions(size, out, scale, align_corners, kind)
    index = np.minimum(np.floor(position).astype(np.int32), size - 1)
    part = np.clip(position - index.astype(kind), 0, 1)
    index = np.clip(index[:, None] + np.arange(-1, 3, dtype=np.int32), 0, size - 1)
    return Taps(index, np.stack([_keys(part - offset, -0.75) for offset in range(-1, 3)], 1), size)


def _keys(x: np.ndarray, a: float) -> np.ndarray:
    """Cubic convolution kernel (Keys, 1981)."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    return np.where(x < 1, near, np.where(x < 2, a * (((x - 5) * x + 8) * x - 4), 0)).astype(x.dtype)


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(x), 0)


def _lanczos(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)


class _Filter(NamedTuple):
    """A kernel of resampling, and how many inputs are below it."""

    kernel: Callable[[np.ndarray], np.ndarray]
    width: int


_LINEAR = _Filter(_triangle, 2)
_CUBIC = _Filter(functools.partial(_keys, a=-0.5), 4)
_LANCZOS = _Filter(_lanczos, 6)


def _filtered(size: int, out: int, scale: float | None, align_corners: bool, kind: np.dtype, below: _Filter) -> Taps:
    """Taps of a filter as wide as the output's step at least, with weights that sum to 1."""
    ratio = _ratio(size, out, scale, align_corners, kind)
    wide = max(ratio, kind.type(1))
    support = kind.type(below.width / 2) * wide
    half = kind.type(0.5)
    center = ratio * (np.arange(out, dtype=kind) + half)
    count = math.ceil(support) * 2 + 1
    first = np.maximum((center - support + half).astype(np.int64), 0)
    last = np.minimum((center + support + half).astype(np.int64), np.minimum(first + count, size))
    at = first[:, None] + np.arange(count)
    weight = np.where(at < last[:, None], below.kernel((at - center[:, None] + half) / wide), 0)
    total = weight.sum(1, keepdims=True)
    weight = np.divide(weight, total, out=weight, where=total != 0)
    return Taps(np.clip(at, 0, size - 1).astype(np.int32), weight.astype(kind), size)


def _fixed_point(x, taps: Taps, dim: int):
    """Taps of an image of bytes with weights of 16 bits, as ATen (and Pillow) has them."""
    index, weight, size = taps
    if weight is None:
        return _along(x, taps, dim)
    merged, greatest = np.zeros((len(index), size)), 0.0  # what is beyond the edge is read from it
    for k in range(index.shape[1]):
        merged[np.arange(len(index)), index[:, k]] += weight[:, k]
        greatest = max(greatest, merged.max(initial=0.0))
    bits = 0
    while bits < 22 and int(0.5 + greatest * (1 << (bits + 1))) < 1 << 15:
        bits += 1
    scaled = merged * (1 << bits)
    matrix = np.trunc(scaled + np.where(scaled < 0, -0.5, 0.5)).astype(np.int32)
    count = max(1, (matrix != 0).sum(1).max(initial=0))
    order = np.argsort(matrix == 0, 1, kind="stable")[:, :count]
    whole = Taps(order.astype(np.int32), np.take_along_axis(matrix, order, 1), size)
    total = _along(x.astype(jnp.int32), whole, dim) + (1 << (bits - 1))
    return jnp.clip(total >> bits, 0, 255).astype(jnp.uint8)


def _interpolate(x, output_size, scales, align_corners: bool, make: Callable[..., Taps], *below: _Filter):
    is_bytes = x.dtype == jnp.uint8
    kind = np.dtype(np.float64) if is_bytes else _kind(x)
    taps = _each(make, x.shape[2:], output_size, scales, align_corners, kind, *below)
    return _resample(x, taps, _fixed_point if is_bytes else _along)


@op("aten::upsample_linear1d", "aten::upsample_bilinear2d", "aten::upsample_trilinear3d", channels_last=True)
def upsample_linear(x, output_size, align_corners, *scales):
    return _interpolate(x, output_size, scales, align_corners, _linear)


@op("aten::upsample_bicubic2d", channels_last=True)
def upsample_bicubic2d(x, output_size, align_corners, *scales):
    return _interpolate(x, output_size, scales, align_corners, _cubic)


@op("aten::_upsample_bilinear2d_aa", channels_last=True)
def upsample_bilinear2d_aa(x, output_size, align_corners, *scales):
    return _interpolate(x, output_size, scales, align_corners, _filtered, _LINEAR)


@op("aten::_upsample_bicubic2d_aa", channels_last=True)
def upsample_bicubic2d_aa(x, output_size, align_corners, *scales):
    return _interpolate(x, output_size, scales, align_corners, _filtered, _CUBIC)


@op("aten::_upsample_lanczos2d_aa", channels_last=True)
def upsample_lanczos2d_aa(x, output_size, align_corners, *scales):
    return _interpolate(x, output_size, scales, align_corners, _filtered, _LANCZOS)


@op(*(f"aten::upsample_{name}_backward" for name in ("linear1d", "bilinear2d", "trilinear3d")), channels_last=True)
def upsample_linear_backward(grad, output_size, input_size, align_corners, *scales):
    return _back(grad, _each(_linear, input_size[2:], output_size, scales, align_corners, _kind(grad)))


@op("aten::upsample_bicubic2d_backward", channels_last=True)
def upsample_bicubic2d_backward(grad, output_size, input_size, align_corners, *scales):
    return _back(grad, _each(_cubic, input_size[2:], output_size, scales, align_corners, _kind(grad)))


def _antialiased_back(grad, output_size, input_size, align_corners, scales, below: _Filter):
    return _back(grad, _each(_filtered, input_size[2:], output_size, scales, align_corners, _kind(grad), below))


@op("aten::_upsample_bilinear2d_aa_backward", channels_last=True)
def upsample_bilinear2d_aa_backward(grad, output_size, input_size, align_corners, *scales):
    return _antialiased_back(grad, output_size, input_size, align_corners, scales, _LINEAR)


@op("aten::_upsample_bicubic2d_aa_backward", channels_last=True)
def upsample_bicubic2d_aa_backward(grad, output_size, input_size, align_corners, *scales):
    return _antialiased_back(grad, output_size, input_size, align_corners, scales, _CUBIC)


@op("aten::_upsample_lanczos2d_aa_backward", channels_last=True)
def upsample_lanczos2d_aa_backward(grad, output_size, input_size, align_corners, *scales):
    return _antialiased_back(grad, output_size, input_size, align_corners, scales, _LANCZOS)
