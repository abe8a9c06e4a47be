"""Reductions, scans, sorting and searching."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from .. import dtypes
from ..layout import ChannelsLast, logical
from .registry import op
from .selection import cast


def axes(dim, ndim: int) -> tuple[int, ...]:
    """The axes that torch's `dim` argument means: None and [] are all of them."""
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return tuple(range(ndim))
    dims = dim if isinstance(dim, list | tuple) else [dim]
    return tuple(d % ndim for d in dims) if ndim else ()


def opmath(x):
    """`x` in the dtype that torch accumulates in: float32 for the 16-bit floats."""
    return x.astype(jnp.float32) if x.dtype in (jnp.float16, jnp.bfloat16) else x


@op("aten::sum", "aten::sum.dim_IntList")
def sum_(x, dim=None, keepdim=False, *, dtype=None, out):
    target = dtypes.to_numpy(out.dtype)
    return jnp.sum(opmath(cast(x, out.dtype)), axes(dim, x.ndim), keepdims=keepdim).astype(target)


@op("aten::mean", "aten::mean.dim", channels_last=True)
def mean(x, dim=None, keepdim=False, *, dtype=None, out):
    target = dtypes.to_numpy(out.dtype)
    if isinstance(x, ChannelsLast):
        if sorted(axes(dim, x.ndim)) == list(range(2, x.ndim)):  # over space, as the pooling at a network's end
            space = tuple(range(1, x.ndim - 1))
            y = jnp.mean(opmath(cast(x.physical, out.dtype)), space, keepdims=keepdim).astype(target)
            return ChannelsLast(y) if keepdim else y
        x = logical(x)
    return jnp.mean(opmath(cast(x, out.dtype)), axes(dim, x.ndim), keepdims=keepdim).astype(target)


@op("aten::prod", "aten::prod.dim_int")
def prod(x, dim=None, keepdim=False, *, dtype=None, out):
    target = dtypes.to_numpy(out.dtype)
    return jnp.prod(opmath(cast(x, out.dtype)), axes(dim, x.ndim), keepdims=keepdim).astype(target)


def _variance(x, dim, correction, keepdim):
    over = axes(dim, x.ndim)
    count = int(np.prod([x.shape[d] for d in over], dtype=np.int64))
    correction = 1 if correction is None else correction
    mean = jnp.mean(opmath(x), over, keepdims=True)
    squares = jnp.sum(jnp.square(jnp.abs(opmath(x) - mean)), over, keepdims=keepdim)
    divisor = max(count - correction, 0)
    return squares / jnp.asarray(divisor, squares.dtype), mean if keepdim else jnp.squeeze(mean, over)


@op("aten::var.correction")
def var(x, dim=None, *, correction=None, keepdim=False, out):
    return _variance(x, dim, correction, keepdim)[0].astype(dtypes.to_numpy(out.dtype))


@op("aten::std.correction")
def std(x, dim=None, *, correction=None, keepdim=False, out):
    return jnp.sqrt(_variance(x, dim, correction, keepdim)[0]).astype(dtypes.to_numpy(out.dtype))


@op("aten::var_mean.correction")
def var_mean(x, dim=None, *, correction=None, keepdim=False, out):
    variance, mean = _variance(x, dim, correction, keepdim)
    return variance.astype(dtypes.to_numpy(out[0].dtype)), mean.astype(dtypes.to_numpy(out[1].dtype))


@op("aten::amax")
def amax(x, dim=(), keepdim=False):
    return jnp.max(x, axes(dim, x.ndim), keepdims=keepdim)


@op("aten::amin")
def amin(x, dim=(), keepdim=False):
    return jnp.min(x, axes(dim, x.ndim), keepdims=keepdim)


@op("aten::max")
def max_all(x):
    return jnp.max(x)


@op("aten::min")
def min_all(x):
    return jnp.min(x)


def _with_index(x, dim, keepdim, argument):
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int64)
    index = argument(x, axis=dim, keepdims=True).astype(jnp.int64)
    value = jnp.take_along_axis(x, index, axis=dim)
    return (value, index) if keepdim else (jnp.squeeze(value, dim), jnp.squeeze(index, dim))


@op("aten::max.dim")
def max_dim(x, dim, keepdim=False):
    return _with_index(x, dim, keepdim, jnp.argmax)


@op("aten::min.dim")
def min_dim(x, dim, keepdim=False):
    return _with_index(x, dim, keepdim, jnp.argmin)


def _arg(x, dim, keepdim, argument):
    if dim is None:
        index = argument(x.reshape(-1))
        return (index.reshape((1,) * x.ndim) if keepdim else index).astype(jnp.int64)
    if x.ndim == 0:
        return jnp.zeros((), jnp.int64)
    return argument(x, axis=dim, keepdims=keepdim).astype(jnp.int64)


@op("aten::argmax")
def argmax(x, dim=None, keepdim=False):
    return _arg(x, dim, keepdim, jnp.argmax)


@op("aten::argmin")
def argmin(x, dim=None, keepdim=False):
    return _arg(x, dim, keepdim, jnp.argmin)


@op("aten::any", "aten::any.dim", "aten::any.dims")
def any_(x, dim=None, keepdim=False, *, out):
    return jnp.any(x != 0, axes(dim, x.ndim), keepdims=keepdim).astype(dtypes.to_numpy(out.dtype))


@op("aten::all", "aten::all.dim", "aten::all.dims")
def all_(x, dim=None, keepdim=False, *, out):
    return jnp.all(x != 0, axes(dim, x.ndim), keepdims=keepdim).astype(dtypes.to_numpy(out.dtype))


@op("aten::count_nonzero.dim_IntList", "aten::count_nonzero")
def count_nonzero(x, dim=None):
    return jnp.sum(x != 0, axes(dim, x.ndim), dtype=jnp.int64)


@op("aten::linalg_vector_norm")
def vector_norm(x, ord=2, dim=None, keepdim=False, *, dtype=None, out):
    over = axes(dim, x.ndim)
    size = jnp.abs(opmath(cast(x, dtype) if dtype is not None else x))
    if ord == float("inf"):
        norm = jnp.max(size, over, keepdims=keepdim)
    elif ord == float("-inf"):
        norm = jnp.min(size, over, keepdims=keepdim)
    elif ord == 0:
        norm = jnp.sum(size != 0, over, keepdims=keepdim)
    elif ord == 1:
        norm = jnp.sum(size, over, keepdims=keepdim)
    elif ord == 2:
        norm = jnp.sqrt(jnp.sum(size * size, over, keepdims=keepdim))
    else:
        norm = jnp.sum(size**ord, over, keepdims=keepdim) ** (1 / ord)
    return norm.astype(dtypes.to_numpy(out.dtype))


# ---- scans


@op("aten::cumsum")
def cumsum(x, dim, *, dtype=None, out):
    if x.ndim == 0:
        return cast(x, out.dtype)
    return jnp.cumsum(opmath(cast(x, out.dtype)), dim).astype(dtypes.to_numpy(out.dtype))


@op("aten::cumprod")
def cumprod(x, dim, *, dtype=None, out):
    if x.ndim == 0:
        return cast(x, out.dtype)
    return jnp.cumprod(opmath(cast(x, out.dtype)), dim).astype(dtypes.to_numpy(out.dtype))


# ---- sorting


def _order(x, dim, descending):
    """Stable order along `dim`, nan as the largest, as in torch."""
    if not descending:
        return jnp.argsort(x, axis=dim, stable=True)
    # a stable descending sort is a stable ascending one of the reversed array, reversed
    flipped = jnp.argsort(jnp.flip(x, dim), axis=dim, stable=True)
    return jnp.flip(x.shape[dim] - 1 - flipped, dim)


@op("aten::sort", "aten::sort.stable")
def sort(x, dim=-1, descending=False, *, stable=False):
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int64)
    order = _order(x, dim, descending)
    return jnp.take_along_axis(x, order, axis=dim), order.astype(jnp.int64)


@op("aten::topk")
def topk(x, k, dim=-1, largest=True, sorted=True):
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int64)
    order = jax.lax.slice_in_dim(_order(x, dim, largest), 0, k, axis=dim % x.ndim)
    return jnp.take_along_axis(x, order, axis=dim), order.astype(jnp.int64)
