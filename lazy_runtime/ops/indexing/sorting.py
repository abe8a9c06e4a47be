"""Sorting, order statistics, and searching in what is sorted. Nan counts as the largest number, as in torch.

Of elements that compare equal, torch leaves open which index stands for them unless the sort is stable; here it is
always the stable one's.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch

from ...ir import dtypes
from ...lowering import checks
from ...lowering.argmax import argmax
from ..gradients import with_gradient
from ..registry import op, overload
from .reduction import checked_op


def sort_with_index(x, dim, descending=False):
    """The elements in order along `dim`, and the place (int64) of each in `x`."""
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int64)
    dim %= x.ndim
    # a stable descending sort is a stable ascending one of the reversed array, reversed
    place = jax.lax.broadcasted_iota(jnp.int64, x.shape, dim)
    operands = (jnp.flip(x, dim), jnp.flip(place, dim)) if descending else (x, place)
    values, order = jax.lax.sort(operands, dimension=dim, is_stable=True, num_keys=1)
    return (jnp.flip(values, dim), jnp.flip(order, dim)) if descending else (values, order)


@checked_op("aten::sort", "aten::sort.stable")
def sort(x, dim=-1, descending=False, *, stable=False):
    return sort_with_index(x, dim, descending)


@op("aten::topk")
def topk(x, k, dim=-1, largest=True, sorted=True):
    values, order = sort_with_index(x, dim, largest)
    if x.ndim == 0:  # k may be 0: torch's result is 0-d all the same
        return values, order
    return tuple(jax.lax.slice_in_dim(part, 0, k, axis=dim % x.ndim) for part in (values, order))


def _pick(x, index, dim, keepdim):
    """The elements at `index` (of size 1 along `dim`), and the index."""
    values = jnp.take_along_axis(x, index, axis=dim)
    return (values, index) if keepdim else (jnp.squeeze(values, dim), jnp.squeeze(index, dim))


def _infer_kthvalue(x: torch.Tensor, k: int, *args: Any) -> Any:
    target: Any = overload("aten::kthvalue")
    target(torch.zeros([min(size, 1) for size in x.shape], dtype=x.dtype, device="cpu"), 1, *args)  # its errors
    return target(x, k, *args)


@op("aten::kthvalue", infer=_infer_kthvalue)
def kthvalue(x, k, dim=-1, keepdim=False, *, out):
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int64)
    if x.size == 0:
        return jnp.zeros(out[0].shape, x.dtype), jnp.zeros(out[0].shape, jnp.int64)
    _, order = sort_with_index(x, dim)
    return _pick(x, jax.lax.slice_in_dim(order, k - 1, k, axis=dim % x.ndim), dim, keepdim)


# ---- medians: the lower one of two


def _median(x, dim, keepdim, out, ignore_nan):
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int64)
    if x.size == 0:
        return jnp.zeros(out[0].shape, x.dtype), jnp.zeros(out[0].shape, jnp.int64)
    _, order = sort_with_index(x, dim)
    size = x.shape[dim]
    is_nan = jnp.isnan(x) if jnp.issubdtype(x.dtype, jnp.floating) else jnp.zeros(x.shape, bool)
    count = size - jnp.sum(is_nan, axis=dim, keepdims=True, dtype=jnp.int64)
    middle = jnp.maximum(count - 1, 0) // 2
    if not ignore_nan:  # the nans are last: the first of them, if any
        middle = jnp.where(count < size, count, middle)
    return _pick(x, jnp.take_along_axis(order, middle, axis=dim), dim, keepdim)


def _median_of_all(x, ignore_nan):
    if x.size == 0:  # of integers the kernel gives the nan's cast
        return jnp.asarray(torch.tensor(float("nan")).to(dtypes.to_torch(x.dtype)).item(), x.dtype)

    def compute(x):
        return _median(x.reshape(-1), 0, False, None, ignore_nan)[0]

    def gradient(cotangent, found, x):  # of all that are equal to the median, alike
        chosen = (x == found) | (jnp.isnan(x) & jnp.isnan(found))
        return (jnp.where(chosen, cotangent / chosen.sum(), 0).astype(x.dtype),)

    return with_gradient(compute, gradient)(x)


@checked_op("aten::median")
def median(x):
    return _median_of_all(x, False)


@checked_op("aten::nanmedian")
def nanmedian(x):
    return _median_of_all(x, True)


@checked_op("aten::median.dim")
def median_dim(x, dim, keepdim=False, *, out):
    return _median(x, dim, keepdim, out, False)


@checked_op("aten::nanmedian.dim")
def nanmedian_dim(x, dim, keepdim=False, *, out):
    return _median(x, dim, keepdim, out, True)


@checked_op("aten::mode")
def mode(x, dim=-1, keepdim=False, *, out):
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int64)
    if x.size == 0:
        return jnp.zeros(out[0].shape, x.dtype), jnp.zeros(out[0].shape, jnp.int64)
    dim %= x.ndim
    values, order = sort_with_index(x, dim)
    place = jax.lax.broadcasted_iota(jnp.int64, x.shape, dim)
    before = jax.lax.slice_in_dim(values, 0, x.shape[dim] - 1, axis=dim)
    after = jax.lax.slice_in_dim(values, 1, x.shape[dim], axis=dim)
    starts = jnp.concatenate([jnp.ones_like(jax.lax.slice_in_dim(values, 0, 1, axis=dim), bool), before != after], dim)
    length = place - jax.lax.cummax(jnp.where(starts, place, 0), dim)  # of each run so far
    longest = argmax(length, axis=dim, keepdims=True)  # the first: the smallest value
    return _pick(x, jnp.take_along_axis(order, longest, axis=dim), dim, keepdim)


# ---- searching


def search(sorted_sequence, values, right, sorter=None):
    """Torch's binary search, step by step: what it finds in a sequence with nans, which it takes to be smaller than
    anything, follows from its steps.
    """
    size = sorted_sequence.shape[-1]
    shared = sorted_sequence.ndim == 1
    start = jnp.zeros(values.shape, jnp.int64)
    if size == 0:
        return start

    def at(array, place):
        return array[place] if shared else jnp.take_along_axis(array, place, axis=-1)

    def step(_, bounds):
        start, end = bounds
        middle = (start + end) // 2
        # where the search is over, `middle` may be `size`
        place = jnp.minimum(middle, size - 1)
        found = at(sorted_sequence, place if sorter is None else at(sorter, place))
        before = jnp.logical_not(found > values if right else found >= values)
        open_ = start < end
        return jnp.where(open_ & before, middle + 1, start), jnp.where(open_ & ~before, middle, end)

    return jax.lax.fori_loop(0, size.bit_length(), step, (start, jnp.full(values.shape, size, jnp.int64)))[0]


def _common_dtype(x, y):
    """The dtype in which torch compares `x` with `y`, an array or a Python number."""
    x, y = (
        torch.empty(z.shape, dtype=dtypes.to_torch(z.dtype), device="meta") if isinstance(z, jax.Array) else z
        for z in (x, y)
    )
    return dtypes.to_numpy(torch.result_type(x, y))


def _infer_searchsorted(x: torch.Tensor, values: Any, *, side: str | None = None, **options: Any) -> Any:
    if side not in (None, "left", "right"):  # the meta kernel lets it pass
        raise RuntimeError(f"torch.searchsorted(): side can only be 'left' or 'right' but got {side}")
    return torch.searchsorted(x, values, side=side, **options)


def _infer_bucketize(values: Any, boundaries: torch.Tensor, **options: Any) -> Any:
    if boundaries.dim() != 1:
        raise RuntimeError(f"boundaries tensor must be 1 dimension, but got dim({boundaries.dim()})")
    return torch.bucketize(values, boundaries, **options)


@op("aten::searchsorted.Tensor", "aten::searchsorted.Scalar", fallible=True, infer=_infer_searchsorted)
def searchsorted(sorted_sequence, values, *, out_int32=False, right=False, side=None, sorter=None, out):
    common = _common_dtype(sorted_sequence, values)
    values = jnp.asarray(values)
    if sorter is not None:
        message = "torch.searchsorted(): sorter index out of range"
        checks.in_range(sorter, sorted_sequence.shape[-1], lambda _: RuntimeError(message), lowest=0)
    found = search(sorted_sequence.astype(common), values.astype(common), right or side == "right", sorter)
    return found.astype(dtypes.to_numpy(out.dtype))


@op("aten::bucketize.Tensor", "aten::bucketize.Scalar", infer=_infer_bucketize)
def bucketize(values, boundaries, *, out_int32=False, right=False, out):
    return searchsorted(boundaries, values, right=right, out=out)
