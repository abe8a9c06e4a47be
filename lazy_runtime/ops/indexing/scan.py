"""Cumulative operators: each element of the result comes from those up to its place."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ...ir import dtypes
from ..registry import op
from .reduction import checked_op, opmath
from .selection import cast


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


def _extreme(x, dim, scan):
    """Running extremes and where they stand: of equal ones the last, of nans too."""
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int64)
    dim %= x.ndim
    if x.size == 0:
        return x, jnp.zeros(x.shape, jnp.int64)
    key = x.astype(jnp.uint8) if x.dtype == jnp.bool_ else x
    hit = key == scan(key, dim)
    if jnp.issubdtype(x.dtype, jnp.floating):
        is_nan = jnp.isnan(x)
        seen = jax.lax.cummax(is_nan.astype(jnp.uint8), dim) != 0
        hit = jnp.where(seen, is_nan, key == scan(jnp.where(is_nan, 0, key), dim))
    place = jax.lax.broadcasted_iota(jnp.int64, x.shape, dim)
    index = jax.lax.cummax(jnp.where(hit, place, 0), dim)
    return jnp.take_along_axis(x, index, axis=dim), index


@checked_op("aten::cummax")
def cummax(x, dim):
    return _extreme(x, dim, jax.lax.cummax)


@checked_op("aten::cummin")
def cummin(x, dim):
    return _extreme(x, dim, jax.lax.cummin)


@checked_op("aten::logcumsumexp")
def logcumsumexp(x, dim, *, out):
    if x.ndim == 0 or x.size == 0:
        return x
    add = _complex_logaddexp if jnp.iscomplexobj(x) else jnp.logaddexp
    summed = jax.lax.associative_scan(add, opmath(x), axis=dim)
    return summed.astype(dtypes.to_numpy(out.dtype))


def _complex_logaddexp(x, y):
    """As aten/src/ATen/native/cpu/ScanKernel (`_log_add_exp_helper`) treats infinities: by the real parts."""
    swap = x.real > y.real
    small, large = jnp.where(swap, y, x), jnp.where(swap, x, y)
    gap = jnp.where(jnp.isneginf(small.real), 0, jnp.exp(small - large))  # exp(-inf), whatever its angle
    both = jnp.isinf(large.real) & (small.real == large.real)
    total = jnp.where(both, jnp.log(jnp.exp(small) + jnp.exp(large)), large + jnp.log1p(gap))
    total = jnp.where(both & (large.real < 0), small, total)
    return jnp.where(jnp.isnan(x) | jnp.isnan(y), jax.lax.complex(jnp.nan, jnp.nan).astype(x.dtype), total)
