"""Bags of embeddings, summed, averaged or their maximum, and the renormalisation of a table (EmbeddingBag.cpp).

Bag `b` has the indices from `offsets[b]` up to `offsets[b + 1]`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch

from ...common import errors
from ...compat.torch import OpOverload
from ...lowering import checks
from ..indexing.indexing import IN_BOUNDS
from ..indexing.reduction import opmath
from ..registry import op

aten = torch.ops.aten

SUM, MEAN, MAX = 0, 1, 2  # at::native::EmbeddingBagMode


def _on_cpu(operator: OpOverload):
    """For `infer=`: the CPU kernel on zeros, whose shapes of all but the first result are not the meta kernel's."""

    def infer(weight, indices, offsets, scale=False, mode=SUM, sparse=False, per_sample_weights=None, *rest) -> Any:
        def zeros(x):
            return None if x is None else torch.zeros(x.shape, dtype=x.dtype, device="cpu")

        rows = torch.zeros(1, *weight.shape[1:], dtype=weight.dtype, device="cpu").expand(weight.shape)
        found = operator(rows, zeros(indices), zeros(offsets), scale, mode, sparse, zeros(per_sample_weights), *rest)
        return tuple(x.to("meta") for x in found)

    return infer


def _bags(indices, offsets):
    """int64 (indices,): the bag that each index is in."""
    places = jnp.arange(indices.size, dtype=offsets.dtype)
    return (jnp.searchsorted(offsets, places, side="right", method="sort") - 1).astype(jnp.int64)


def _check(weight, indices, offsets):
    if offsets.size:
        first = "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0. "
        checks.require(offsets[0] == 0, lambda n: RuntimeError(f"{first}However, got {n}"), offsets[0])
        past = f"offsets[-1] can not be greater than input's length {indices.size} but got offsets[-1] of "
        checks.require(offsets[-1] <= indices.size, lambda n: RuntimeError(f"{past}{n}"), offsets[-1])
    wanted = "embedding_bag: Expected idx >= 0 && idx < num_embeddings but found idx to be "
    checks.in_range(indices, weight.shape[0], lambda n: RuntimeError(f"{wanted}{n}"), lowest=0)


@op("aten::_embedding_bag", fallible=True, infer=_on_cpu(aten._embedding_bag.default))
@op("aten::_embedding_bag_forward_only", fallible=True, infer=_on_cpu(aten._embedding_bag_forward_only.default))
def embedding_bag(
    weight,
    indices,
    offsets,
    scale_grad_by_freq=False,
    mode=SUM,
    sparse=False,
    per_sample_weights=None,
    include_last_offset=False,
    padding_idx=-1,
    *,
    out,
):
    _check(weight, indices, offsets)
    count = out[0].shape[0]
    bags = _bags(indices, offsets)
    indices = indices.astype(jnp.int64)
    counted = jnp.where(indices == padding_idx, count, bags)  # what is in no bag of `count` is dropped
    sizes = jnp.zeros(count, jnp.int64).at[counted].add(1, mode="drop")
    rows = opmath(weight.at[indices].get(mode=IN_BOUNDS))
    if per_sample_weights is not None:
        rows = rows * opmath(per_sample_weights)[:, None]
    if mode == MAX:
        bag, greatest = _greatest(rows, indices, counted, count)
    else:
        bag, greatest = jnp.zeros(out[0].shape, rows.dtype).at[counted].add(rows, mode="drop"), None
        if mode == MEAN:
            bag = bag / jnp.maximum(sizes, 1)[:, None].astype(bag.dtype)
    kind = jnp.dtype(offsets.dtype)
    sizes = jnp.pad(sizes if mode != SUM else jnp.zeros_like(sizes), (0, out[2].shape[0] - count)).astype(kind)
    greatest = sizes if greatest is None else greatest.astype(kind)
    return bag.astype(weight.dtype), bags[: out[1].shape[0]].astype(kind), sizes, _like(greatest, out[3])


def _like(x, spec):
    return jnp.pad(x, [(0, wanted - size) for wanted, size in zip(spec.shape, x.shape, strict=True)])


def _greatest(rows, indices, bags, count: int):
    """The maximum of each column of each bag, and the index that it came from; zeros for an empty bag."""
    shape = (count, rows.shape[1])
    lowest = jnp.full(shape, -jnp.inf, rows.dtype)
    bag = lowest.at[bags].max(rows, mode="drop")
    beyond = indices.size
    found = (rows == bag.at[bags].get(mode="fill")) & (bags < count)[:, None]
    places = jnp.where(found, jnp.arange(beyond)[:, None], beyond)
    first = jnp.full(shape, beyond, places.dtype).at[bags].min(places, mode="drop")
    some = first < beyond
    return jnp.where(jnp.isneginf(bag) & ~some, 0, bag), jnp.where(some, indices.at[first].get(mode="fill"), 0)


def _infer_dense(grad, indices, offsets, offset2bag, bag_size, maximum, num_weights, scale, mode, sparse, *rest):
    if sparse:
        raise NotImplementedError(errors.no_sparse_here(aten._embedding_bag_backward.default))
    return grad.new_empty(num_weights, grad.shape[1])


@op("aten::_embedding_bag_backward", infer=_infer_dense)
def embedding_bag_backward(
    grad,
    indices,
    offsets,
    offset2bag,
    bag_size,
    maximum_indices,
    num_weights,
    scale_grad_by_freq,
    mode,
    sparse,
    per_sample_weights,
    padding_idx=-1,
):
    bags = _bags(indices, offsets)
    return embedding_bag_dense_backward(
        grad,
        indices,
        bags,
        bag_size,
        maximum_indices,
        num_weights,
        scale_grad_by_freq,
        mode,
        per_sample_weights,
        padding_idx,
    )


@op("aten::_embedding_bag_dense_backward")
def embedding_bag_dense_backward(
    grad,
    indices,
    offset2bag,
    bag_size,
    maximum_indices,
    num_weights,
    scale_grad_by_freq,
    mode,
    per_sample_weights,
    padding_idx=-1,
):
    total = jnp.zeros((num_weights, grad.shape[1]), opmath(grad).dtype)
    if mode == MAX:
        some = (bag_size[: grad.shape[0]] > 0)[:, None]
        place = (maximum_indices[: grad.shape[0]], jnp.arange(grad.shape[1]))
        return total.at[place].add(jnp.where(some, opmath(grad), 0)).astype(grad.dtype)
    rows = _of_bags(grad, indices, offset2bag, padding_idx)
    if mode == MEAN:
        rows = rows / bag_size.at[offset2bag].get(mode="fill", fill_value=1)[:, None].astype(rows.dtype)
    if scale_grad_by_freq:
        counts = jnp.zeros(num_weights, rows.dtype).at[indices].add(1)
        rows = rows / counts[indices][:, None]
    if per_sample_weights is not None:
        rows = rows * opmath(per_sample_weights)[:, None]
    return total.at[indices].add(rows, mode=IN_BOUNDS).astype(grad.dtype)


def _of_bags(grad, indices, bags, padding_idx):
    """For each index the gradient of its bag; zeros for padding."""
    rows = opmath(grad.at[bags].get(mode="fill", fill_value=0))
    return jnp.where((indices == padding_idx)[:, None], 0, rows)


@op("aten::_embedding_bag_per_sample_weights_backward")
def embedding_bag_per_sample_weights_backward(grad, weight, indices, offsets, offset2bag, mode, padding_idx=-1):
    rows = _of_bags(grad, indices, _bags(indices, offsets), padding_idx)
    return jnp.sum(rows * opmath(weight.at[indices].get(mode=IN_BOUNDS)), 1).astype(grad.dtype)


@op("aten::embedding_renorm", fallible=True)
def embedding_renorm(weight, indices, max_norm, norm_type):
    indices, size = indices.reshape(-1), weight.shape[0]
    shape = list(weight.shape)
    message = f"out of range for tensor of size {shape} at dimension 0"
    checks.in_range(indices, size, lambda n: IndexError(f"select(): index {n} {message}"))
    rows = jnp.take(weight, indices, 0, mode="wrap")
    norm = jnp.linalg.norm(opmath(rows), norm_type, 1)
    scale = jnp.where(norm > max_norm, max_norm / (norm + 1e-7), 1)[:, None]
    # the same row for the same index: the order of the writes does not matter
    return weight.at[jax.lax.rem(indices + size, size)].set((opmath(rows) * scale).astype(weight.dtype))
