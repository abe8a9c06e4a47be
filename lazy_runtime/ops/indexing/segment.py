"""Reductions over segments of a dimension."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import torch

from ...ir import dtypes
from ...lowering import checks
from ..gradients import with_gradient
from ..registry import op
from .reduction import opmath

_EMPTY = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}

#: what torch says of a segment that ends before it starts
_NEGATIVE = (
    "Expected segment_length >= 0 to be true, but got false.  "
    "(Could this error message be improved?  If so, please report an enhancement request to PyTorch.)"
)


class _Segments:
    """Which segment each row of `data` (its dimensions up to `axis` joined) belongs to.

    Attributes:
        ids: one per row; `count` for a row that belongs to none.
        lengths: rows in each segment.
        count: how many segments there are in all.
    """

    def __init__(self, data, lengths, offsets, axis):
        if offsets is None:
            zero = jnp.zeros((*lengths.shape[:-1], 1), lengths.dtype)
            offsets = jnp.concatenate([zero, jnp.cumsum(lengths, -1)], -1)
        self.shape = (*data.shape[:axis], offsets.shape[-1] - 1)
        self.count = math.prod(self.shape)
        self.row = data.shape[axis + 1 :]
        batch, size, each = math.prod(data.shape[:axis]), data.shape[axis], self.shape[-1]
        offsets = offsets.reshape(batch, each + 1).astype(jnp.int64)
        places = jnp.arange(size)
        found = jax.vmap(lambda row: jnp.searchsorted(row, places, side="right"))(offsets) - 1
        valid = (found >= 0) & (found < each)
        ids = jnp.arange(batch)[:, None] * each + found
        self.ids = jnp.where(valid, ids, self.count).reshape(-1)
        self.lengths = jnp.diff(offsets, axis=-1).reshape(-1)

    def rows(self, data):
        return data.reshape(self.ids.size, math.prod(self.row))

    def total(self, rows, reduction=jax.ops.segment_sum):
        """Of each segment, and one more of what belongs to none."""
        return reduction(rows, self.ids, self.count + 1)


def _infer(data: torch.Tensor, reduce: str, *, axis: int = 0, **options: Any) -> Any:
    target = torch.ops.aten.segment_reduce.default
    if options.get("indices") is not None:
        raise RuntimeError("segment_reduce(): indices based reduction is not supported yet.")
    name = "lengths" if options.get("offsets") is None else "offsets"
    places = options.get(name)
    if places is not None:  # what the CPU kernel says of these dtypes
        one = {name: torch.ones(1, dtype=places.dtype, device="cpu")}
        target(torch.zeros(1, dtype=data.dtype, device="cpu"), reduce, **one)
    if -data.dim() <= axis < 0:  # which the meta kernel does not wrap
        axis += data.dim()
    if places is not None and axis == places.dim() - 1 and places.shape[:-1] != data.shape[:axis]:
        raise RuntimeError(  # the CPU kernel reads beyond one of them
            f"segment_reduce(): Expected segments for each of {list(data.shape[:axis])} rows along dimension {axis} of "
            f"data, but got {list(places.shape[:-1])}."
        )
    return target(data, reduce, axis=axis, **options)


@op("aten::segment_reduce", fallible=True, infer=_infer)
def segment_reduce(data, reduce, *, lengths=None, indices=None, offsets=None, axis=0, unsafe=False, initial=None, out):
    axis %= data.ndim
    if lengths is not None and not unsafe:
        _check_lengths(lengths, data.shape[axis])
    start = _EMPTY[reduce] if initial is None else initial
    segments = _Segments(data, lengths, offsets, axis)
    checks.require((segments.lengths >= 0).all(), lambda _: RuntimeError(_NEGATIVE))

    def compute(data, lengths, offsets):
        found = _reduced(_Segments(data, lengths, offsets, axis), opmath(data), reduce, start, initial is None)
        return found.reshape(out.shape).astype(dtypes.to_numpy(out.dtype))

    def gradient(cotangent, output, data, lengths, offsets):
        where = {"lengths": lengths, "offsets": offsets, "axis": axis, "initial": initial}
        return (segment_reduce_backward(cotangent, output, data, reduce, **where),)

    return with_gradient(compute, gradient)(data, lengths, offsets)


def _reduced(segments, data, reduce, start, is_empty_nan):
    """(segments, elements of a row) reduced."""
    rows = segments.rows(data)
    if reduce in ("sum", "mean"):
        found = segments.total(rows)[:-1] + start
    elif reduce == "prod":
        found = segments.total(rows, jax.ops.segment_prod)[:-1] * start
    elif reduce == "max":
        found = jnp.maximum(segments.total(rows, jax.ops.segment_max)[:-1], start)
    else:
        found = jnp.minimum(segments.total(rows, jax.ops.segment_min)[:-1], start)
    if reduce == "mean":
        length = segments.lengths[:, None]
        found = jnp.where(length > 0, found / length, jnp.nan if is_empty_nan else found)
    return found


def _check_lengths(lengths, size: int) -> None:
    if lengths.size == 0:
        return
    checks.require((lengths >= 0).all(), lambda _: RuntimeError("lengths contains negative value!"))
    message = (
        "segment_reduce(): Expected all rows of lengths along axis to sum to data.size(lengths.dim()-1) when !unsafe."
    )
    checks.require((lengths.sum(-1) == size).all(), lambda _: RuntimeError(message))


@op("aten::_segment_reduce_backward")
def segment_reduce_backward(grad, output, data, reduce, *, lengths=None, offsets=None, axis=0, initial=None):
    axis %= data.ndim
    segments = _Segments(data, lengths, offsets, axis)
    rows = segments.rows(opmath(data))

    def of_rows(x):
        """Each row's own segment's part; 0 for the rows of none."""
        x = x.reshape(segments.count, math.prod(segments.row))
        return jnp.concatenate([x, jnp.zeros((1, x.shape[1]), x.dtype)])[segments.ids]

    grads = of_rows(opmath(grad))
    if reduce == "mean":
        grads = grads / jnp.maximum(of_rows(segments.lengths), 1)
    elif reduce in ("max", "min"):
        hit = jnp.isnan(rows) | (rows == of_rows(opmath(output)))
        grads = jnp.where(hit, grads / segments.total(hit.astype(rows.dtype))[segments.ids], 0)
    elif reduce == "prod":
        # of the other elements: a quotient, but where an element is 0 or nan
        is_nan, is_zero = jnp.isnan(rows), rows == 0
        others = segments.total(jnp.where(is_nan | is_zero, 1, rows), jax.ops.segment_prod)[segments.ids]
        others = others * (1 if initial is None else initial)
        nans = segments.total(is_nan.astype(jnp.int32))[segments.ids] - is_nan
        zeros = segments.total(is_zero.astype(jnp.int32))[segments.ids] - is_zero
        others = jnp.where(nans > 0, jnp.nan, jnp.where(zeros > 0, 0, others))
        grads = grads * jnp.where(is_nan | is_zero, others, of_rows(opmath(output)) / rows)
    inside = segments.ids < segments.count
    grads = jnp.where(inside[:, None], grads, 0)
    return grads.reshape(data.shape).astype(data.dtype)
