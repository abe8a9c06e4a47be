"""Gathering and scattering along one dimension, by an index of the result's shape or by one vector of positions.

An index out of range is a failed check with the type and message of torch's CPU kernel, as in `indexing.py`.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
import torch

from ...lowering import checks
from ..gradients import with_gradient
from ..registry import op
from .indexing import IN_BOUNDS, add, out_of_bounds, out_of_range_in_self

aten = torch.ops.aten


def _with_dimensions(function):
    """Lets a function of (x, dim, index, ...) whose result has x's shape take a tensor without dimensions, which torch
    treats as a vector of one element.
    """

    @functools.wraps(function)
    def wrapper(x, dim, index, *rest, **options):
        if x.ndim:
            return function(x, dim % x.ndim, index, *rest, **options)
        rest = [part.reshape(-1) if hasattr(part, "ndim") else part for part in rest]
        return function(x.reshape(1), 0, index.reshape(-1), *rest, **options).reshape(())

    return wrapper


# ---- by an index of the result's shape


def _require_elements(x, dim, index):
    checks.in_range(index, x.shape[dim], out_of_bounds(RuntimeError, dim, x.shape[dim]), lowest=0)


@op("aten::gather", fallible=True)
def gather(x, dim, index, *, sparse_grad=False):
    if x.ndim == 0:
        return gather(x.reshape(1), 0, index.reshape(-1)).reshape(index.shape)
    if index.size == 0:
        return jnp.zeros(index.shape, x.dtype)
    dim %= x.ndim
    if index.ndim == 0:
        return gather(x, dim, index.reshape(1)).reshape(())
    _require_elements(x, dim, index)
    if x.shape[dim] == 0:
        return jnp.zeros(index.shape, x.dtype)
    window = tuple(slice(None) if d == dim else slice(0, index.shape[d]) for d in range(x.ndim))
    return jnp.take_along_axis(x[window], index, axis=dim, mode=IN_BOUNDS)


def _places(x, dim, index):
    grid = list(jnp.meshgrid(*(jnp.arange(n) for n in index.shape), indexing="ij", sparse=True))
    grid[dim] = index
    return x.at[tuple(grid)]


def _combine(places, x, dim, index, source, how):
    """`x` with `source` written or reduced into places, as torch's `reduce` argument says.

    Args:
        places: `_places` or `_slices`.
    """
    place = places(x, dim, index)
    if how in ("add", "sum", "mean"):
        return add(place, source)
    if how in ("multiply", "prod"):
        return _product(places, x, dim, index, source)
    combine = {None: place.set, "amax": place.max, "amin": place.min}[how]
    return combine(source, mode=IN_BOUNDS)


def _product(places, x, dim, index, source):
    if source.dtype == jnp.bool_:
        return places(x, dim, index).min(source, mode=IN_BOUNDS)

    def compute(x, source, index):
        return places(x, dim, index).multiply(source, mode=IN_BOUNDS)

    def gradient(cotangent, _, x, source, index):
        """Of each factor the product of the others: a quotient, but where a factor is 0."""
        own, given = (jnp.where(factor == 0, 1, factor) for factor in (x, source))
        rest = compute(own, given, index)
        zeros = places((x == 0).astype(jnp.int32), dim, index).add((source == 0).astype(jnp.int32), mode=IN_BOUNDS)

        def others(rest, zeros, factor, divisor):
            return jnp.where(zeros == (factor == 0), rest / divisor, 0)

        of_x = cotangent * others(rest, zeros, x, own)
        cotangent, rest, zeros = (places(each, dim, index).get(mode=IN_BOUNDS) for each in (cotangent, rest, zeros))
        of_source = cotangent * others(rest, zeros, source, given)
        return of_x, of_source if source.ndim else of_source.sum()

    return with_gradient(compute, gradient)(x, source, index)


@op("aten::scatter.src", "aten::scatter.value", "aten::scatter.reduce", "aten::scatter.value_reduce", fallible=True)
@_with_dimensions
def scatter(x, dim, index, source, *, reduce=None):
    if index.size == 0:  # of any rank, torch lets it pass
        return x
    if index.ndim == 0:
        index = index.reshape(1)
    _require_elements(x, dim, index)
    if x.size == 0:
        return x
    return _combine(_places, x, dim, index, _source(x, index, source), reduce)


def _source(x, index, source):
    source = jnp.asarray(source).astype(x.dtype)
    if source.ndim == 0:
        return source
    return source[tuple(slice(0, n) for n in index.shape)]


@op("aten::scatter_add", fallible=True)
def scatter_add(x, dim, index, source):
    return scatter(x, dim, index, source, reduce="add")


@op("aten::scatter_reduce.two", fallible=True)
@_with_dimensions
def scatter_reduce(x, dim, index, source, reduce, *, include_self=True):
    if index.size == 0:
        return x
    if index.ndim == 0:
        index, source = index.reshape(1), source.reshape(-1)
    _require_elements(x, dim, index)
    if x.size == 0:
        return x
    return _reduced(_places, x, dim, index, _source(x, index, source), reduce, include_self)


def _reduced(places, x, dim, index, source, reduce, include_self):
    """`x` with `source` reduced into the places; without `include_self` what `x` holds there does not count."""
    start = x if include_self else places(x, dim, index).set(_identity(reduce, x.dtype), mode=IN_BOUNDS)
    result = _combine(places, start, dim, index, source, reduce)
    if reduce != "mean":
        return result
    counts = jnp.ones(x.shape, jnp.int32)
    counts = counts if include_self else places(counts, dim, index).set(0, mode=IN_BOUNDS)
    counts = jnp.maximum(places(counts, dim, index).add(1, mode=IN_BOUNDS), 1)
    mean = result // counts if jnp.issubdtype(x.dtype, jnp.integer) else result / counts
    return mean.astype(x.dtype)


def _identity(reduce, dtype):
    """What changes nothing: 0, 1, or the dtype's least or greatest value."""
    if reduce in ("sum", "mean"):
        return np.zeros((), dtype)
    if reduce == "prod":
        return np.ones((), dtype)
    if dtype == np.bool_:
        return np.asarray(reduce == "amin")
    if jnp.issubdtype(dtype, jnp.floating):
        return np.asarray(-np.inf if reduce == "amax" else np.inf, dtype)
    limits = jnp.iinfo(dtype)
    return np.asarray(limits.min if reduce == "amax" else limits.max, dtype)


# ---- by one vector of positions


def _slices(x, dim, index):
    return x.at[(slice(None),) * dim + (index.reshape(-1),)]


def _out_of_data(size):
    return lambda index: RuntimeError(f"INDICES element is out of DATA bounds, id={index} axis_dim={size}")


def _infer_index_select(x, dim, index):
    found = aten.index_select.default(x, dim, index)
    if x.dim() > 1 and found.numel() and x.shape[dim] == 0:
        raise RuntimeError("index_select(): self indexing axis dim should be positive")
    return found


@op("aten::index_select", fallible=True, infer=_infer_index_select)
def index_select(x, dim, index, *, out):
    if x.ndim == 0:
        return index_select(x.reshape(1), 0, index, out=out).reshape(out.shape)
    dim %= x.ndim
    size = x.shape[dim]
    if out.numel:
        checks.in_range(index, size, _out_of_data(size) if dim == 1 else out_of_range_in_self, lowest=0)
    if out.numel == 0 or size == 0:
        return jnp.zeros(out.shape, x.dtype)
    return _slices(x, dim, index).get(mode=IN_BOUNDS)


def _infer_index_add(x, dim, index, source, *, alpha=1):
    found = aten.index_add.default(x, dim, index, source, alpha=alpha)
    others = [list(tensor.shape) for tensor in (x, source)]
    for sizes in others:
        sizes[dim : dim + 1 or None] = [] if sizes else sizes
    if x.dim() and source.dim() and others[0] != others[1]:
        raise RuntimeError(
            "source tensor shape must match self tensor shape, excluding the specified dimension. "
            f"Got self.shape = {list(x.shape)} source.shape = {list(source.shape)}"
        )
    return found


@op("aten::index_add", fallible=True, infer=_infer_index_add)
@_with_dimensions
def index_add(x, dim, index, source, *, alpha=1):
    # torch scatters where it can, and that words its errors differently
    scatters = x.ndim > 1 and dim in (0, x.ndim - 1) and alpha == 1 and index.dtype == jnp.int64
    size = x.shape[dim]
    checks.in_range(index, size, out_of_bounds(RuntimeError, dim, size) if scatters else out_of_range_in_self, lowest=0)
    if x.size == 0:
        return x
    scaled = source if alpha == 1 else jnp.asarray(alpha).astype(x.dtype) * source
    return add(_slices(x, dim, index), scaled)


@op("aten::index_copy", fallible=True)
@_with_dimensions
def index_copy(x, dim, index, source):
    size = x.shape[dim]
    checks.in_range(index, size, out_of_bounds(IndexError, dim, size, "index_copy_(): "), lowest=0)
    return _slices(x, dim, index).set(source, mode=IN_BOUNDS) if x.size else x


def _infer_index_fill(x, dim, index, value):
    if index.dtype is not torch.int64:
        raise IndexError("index_fill_(): Expected dtype int64 for index.")
    return aten.index_fill(x, dim, index, value)


@op("aten::index_fill.int_Scalar", "aten::index_fill.int_Tensor", fallible=True, infer=_infer_index_fill)
@_with_dimensions
def index_fill(x, dim, index, value):
    checks.in_range(index, x.shape[dim], out_of_bounds(IndexError, dim, x.shape[dim]))
    value = jnp.asarray(value).astype(x.dtype).reshape(())
    return _slices(x, dim, index).set(value, mode=IN_BOUNDS) if x.size else x


@op("aten::index_reduce", fallible=True)
@_with_dimensions
def index_reduce(x, dim, index, source, reduce, *, include_self=True):
    checks.in_range(index, x.shape[dim], out_of_range_in_self, lowest=0)
    if x.size == 0:
        return x
    return _reduced(_slices, x, dim, index, source, reduce, include_self)
