"""Indexing by tensors as `x[...]` does it, masks, flat positions, and embeddings.

An index out of range is a failed check (`checks.py`) with the type and message of torch's CPU kernel. So the accesses
themselves promise that they are in bounds; where the promise is broken XLA stays within the memory all the same.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch

from ...common import errors
from ...lowering import aten_bridge, checks
from ..registry import op

aten = torch.ops.aten

IN_BOUNDS = "promise_in_bounds"


def out_of_bounds(kind, dim, size, prefix=""):
    """Makes the error of most kernels: an index that does not lie in dimension `dim`."""
    return lambda index: kind(f"{prefix}index {index} is out of bounds for dimension {dim} with size {size}")


def add(place, values):
    """`place.add(values)` in torch's arithmetic, where the sum of booleans says whether one of them is true."""
    return (place.max if values.dtype == jnp.bool_ else place.add)(values, mode=IN_BOUNDS)


def is_mask(index):
    """Whether an index (an array or a tensor, or None) selects by truth values and not by numbers."""
    return index is not None and index.dtype in (jnp.bool_, jnp.uint8, torch.bool, torch.uint8)


def _index_tuple(indices):
    return tuple(slice(None) if part is None else part for part in indices)


def _require_in_range(x, indices):
    given = [(dim, part) for dim, part in enumerate(indices) if part is not None]
    for number, (dim, part) in enumerate(given):  # torch's "dimension" counts the indices that are given
        checks.in_range(part, x.shape[dim], out_of_bounds(IndexError, number, x.shape[dim]))


def _infer_index(x, indices):
    """`aten::index.Tensor` on meta tensors, with a check that only the CPU kernel makes."""
    found = aten.index.Tensor(x, indices)
    numbers = [(part, x.shape[dim]) for dim, part in enumerate(indices) if part is not None]
    if any(size == 0 for _, size in numbers) and all(part.numel() for part, _ in numbers):
        raise IndexError("index is out of bounds for dimension with size 0")
    return found


def _infer_index_put(x, indices, values, accumulate=False):
    """`aten::index_put` on meta tensors, with the checks that only the CPU kernel makes. Those of a mask are made in
    `data_dependent.py`, and when the program runs.
    """
    if not any(map(is_mask, indices)):
        shape = _infer_index(x, indices).shape
        if not broadcasts(values.shape, shape):
            raise RuntimeError(_shape_mismatch(values.shape, shape))
        if values.dtype is not x.dtype:  # torch's words
            one = torch.zeros(1, dtype=torch.int64, device="cpu")
            aten.index_put.default(one.to(x.dtype), [one], one.to(values.dtype))
    return aten.index_put.default(x, indices, values, accumulate)


def broadcasts(shape, target):
    """Whether a tensor of this shape can be expanded to `target`."""
    pairs = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(size in (1, wanted) for size, wanted in pairs)


def _shape_mismatch(shape, target):
    return (
        f"shape mismatch: value tensor of shape {list(shape)} cannot be broadcast to indexing result of shape "
        f"{list(target)}"
    )


@op("aten::index.Tensor", "aten::_unsafe_index.Tensor", host_inputs=("indices",), fallible=True, infer=_infer_index)
def index(x, indices, *, out):
    if out.numel == 0:
        return jnp.zeros(out.shape, x.dtype)
    _require_in_range(x, indices)
    return x.at[_index_tuple(indices)].get(mode=IN_BOUNDS)


@op("aten::index_put", "aten::_unsafe_index_put", host_inputs=("indices",), fallible=True, infer=_infer_index_put)
def index_put(x, indices, values, accumulate=False):
    if any(map(is_mask, indices)):
        return _masked_put(x, indices, values, accumulate)
    if x.size == 0 or any(part is not None and part.size == 0 for part in indices):
        return x
    _require_in_range(x, indices)
    place = x.at[_index_tuple(indices)]
    return add(place, values) if accumulate else place.set(values, mode=IN_BOUNDS)


def _masked_put(x, indices, values, accumulate):
    """`x[mask] = values`: the k-th place that the mask selects takes the k-th value."""
    if sum(part is not None for part in indices) > 1:
        raise NotImplementedError("a boolean mask beside other indices selects elements whose number depends on data")
    axis, mask = next((axis, part) for axis, part in enumerate(indices) if part is not None)
    mask = mask.astype(bool)
    before, after = x.shape[:axis], x.shape[axis + mask.ndim :]
    numbers = values.ndim - 1 - len(after)  # the dimension of the values that numbers the selected places
    count = values.shape[numbers] if numbers >= 0 else 1
    flat = x.reshape(*before, mask.size, *after)
    if count != 1:
        shape = values.shape
        taken = jnp.cumsum(mask.reshape(-1))
        total = taken[-1] if mask.size else 0
        checks.require(
            total == count, lambda n: RuntimeError(_shape_mismatch(shape, (*before, n, *after))), value=total
        )
        if count == 0 or mask.size == 0:
            return x
        values = values.at[(slice(None),) * numbers + (jnp.maximum(taken - 1, 0),)].get(mode=IN_BOUNDS)
    chosen = mask.reshape((-1,) + (1,) * len(after))
    return jnp.where(chosen, flat + values if accumulate else values, flat).reshape(x.shape)


@op("aten::_unsafe_masked_index")
def unsafe_masked_index(x, mask, indices, fill, *, out):
    """`x[indices]` where the mask is true; elsewhere the indices mean nothing."""
    fill = jnp.asarray(fill).astype(x.dtype)
    if x.size == 0:
        return jnp.full(out.shape, fill)
    return jnp.where(mask, x.at[_clamped(x, indices)].get(mode=IN_BOUNDS), fill)


@op("aten::_unsafe_masked_index_put_accumulate")
def unsafe_masked_index_put_accumulate(x, mask, indices, values):
    if x.size == 0:
        return x
    return add(x.at[_clamped(x, indices)], jnp.where(mask, values, jnp.zeros((), x.dtype)))


def _clamped(x, indices):
    limits = zip(indices, x.shape, strict=False)
    return _index_tuple([None if part is None else jnp.clip(part, -size, size - 1) for part, size in limits])


# ---- masks


def _infer_masked_scatter(x, mask, source):
    if mask.dtype is not torch.bool:
        raise RuntimeError(
            f"masked_scatter_ only supports boolean masks, but got mask with dtype {errors.type_name(mask.dtype)}"
        )
    return aten.masked_scatter.default(x, mask, source)


@op("aten::masked_scatter", fallible=True, infer=_infer_masked_scatter)
def masked_scatter(x, mask, source, *, out):
    x, mask = jnp.broadcast_to(x, out.shape), jnp.broadcast_to(mask, out.shape)
    if x.size == 0:
        return x
    taken = jnp.cumsum(mask.reshape(-1))
    checks.require(
        taken[-1] <= source.size, lambda _: RuntimeError("Number of elements of source < number of ones in mask")
    )
    if source.size == 0:
        return x
    values = source.reshape(-1).at[jnp.clip(taken - 1, 0, source.size - 1)].get(mode=IN_BOUNDS)
    return jnp.where(mask, values.reshape(out.shape), x)


@op("aten::masked_scatter_backward")
def masked_scatter_backward(grad, mask, sizes, *, out):
    mask = jnp.broadcast_to(mask, grad.shape).reshape(-1)
    places = jnp.where(mask, jnp.cumsum(mask) - 1, out.numel)
    return jnp.zeros(out.numel, grad.dtype).at[places].set(grad.reshape(-1), mode="drop").reshape(out.shape)


# ---- flat positions


def _require_positions(index, size):
    checks.in_range(
        index, size, lambda i: IndexError(f"out of range: tried to access index {i} on a tensor of {size} elements.")
    )


def _infer_take(x, index):
    if x.numel() == 0 and index.numel() != 0:
        raise IndexError("take(): tried to take from an empty tensor")
    return aten.take.default(x, index)


@op("aten::take", fallible=True, infer=_infer_take)
def take(x, index):
    if index.size == 0:
        return jnp.zeros(index.shape, x.dtype)
    _require_positions(index, x.size)
    return x.reshape(-1).at[index].get(mode=IN_BOUNDS)


def _infer_put(x, index, source, accumulate=False):
    if index.dtype is not torch.int64:
        found = errors.type_name(index.dtype)
        raise RuntimeError(f"put_(): Expected a long tensor for index, but got {found}")
    if x.dtype is not source.dtype:
        raise RuntimeError(
            f"put_(): self and source expected to have the same dtype, but got self.dtype = "
            f"{errors.type_name(x.dtype)} and source.dtype = {errors.type_name(source.dtype)}"
        )
    if index.numel() != source.numel():
        raise IndexError(
            f"put_(): Expected source and index to have the same number of elements, but got source.numel() = "
            f"{source.numel()}, index.numel() = {index.numel()}"
        )
    if x.numel() == 0 and index.numel() != 0:
        raise IndexError("put_(): Tried to put elements into an empty tensor")
    return torch.empty_like(x)


@op("aten::put", fallible=True, infer=_infer_put)
def put(x, index, source, accumulate=False):
    if index.size == 0:
        return x
    _require_positions(index, x.size)
    place = x.reshape(-1).at[index.reshape(-1)]
    values = source.reshape(-1)
    return (add(place, values) if accumulate else place.set(values, mode=IN_BOUNDS)).reshape(x.shape)


# ---- embeddings


def out_of_range_in_self(_):
    return IndexError("index out of range in self")


@op("aten::embedding", fallible=True)
def embedding(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False, *, out):
    checks.in_range(indices, weight.shape[0], out_of_range_in_self, lowest=0)
    if out.numel == 0 or weight.shape[0] == 0:
        return jnp.zeros(out.shape, weight.dtype)
    return weight.at[indices].get(mode=IN_BOUNDS)


@op("aten::embedding_dense_backward", fallible=True)
def embedding_dense_backward(grad, indices, num_weights, padding_idx, scale_grad_by_freq, *, out):
    indices = indices.reshape(-1)
    checks.in_range(indices, num_weights, out_of_range_in_self, lowest=0)
    if grad.size == 0 or num_weights == 0:
        return jnp.zeros(out.shape, grad.dtype)
    grad = grad.reshape(indices.size, -1)
    if out.device.platform == "cpu" and aten_bridge.available():
        # XLA's is a loop of one row at a time, for which the whole program gets the older code generator
        within = jnp.clip(indices, 0, num_weights - 1)  # torch's kernel does not look
        arguments = [grad, within, num_weights, padding_idx, scale_grad_by_freq]
        like = jax.ShapeDtypeStruct(out.shape, grad.dtype)
        return aten_bridge.call("aten::embedding_dense_backward", arguments, [like])[0]
    if scale_grad_by_freq:
        counts = jnp.zeros(num_weights, grad.dtype).at[indices].add(1, mode=IN_BOUNDS)
        grad = grad / counts[indices][:, None]
    if padding_idx >= 0:
        grad = jnp.where((indices == padding_idx)[:, None], 0, grad)
    return jnp.zeros(out.shape, grad.dtype).at[indices].add(grad, mode=IN_BOUNDS)
