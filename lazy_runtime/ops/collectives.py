"""Collectives among the ranks of a job: each is one of XLA's in the program of every rank.

Groups come as the flat list of their members and the size of each (all alike); no members means all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from .. import checks
from ..distributed.job import AXIS
from .registry import op

_library = torch.library.Library("lazy_runtime", "FRAGMENT")
_library.define("all_reduce(Tensor[] tensors, str kind, float scale, int[] members, int size) -> Tensor[]")
_library.define("all_gather(Tensor tensor, int dim, int[] members, int size) -> Tensor")
_library.define("reduce_scatter(Tensor tensor, str kind, float scale, int dim, int[] members, int size) -> Tensor")
_library.define("all_to_all(Tensor tensor, int split_dim, int concat_dim, int[] members, int size) -> Tensor")
_library.define("collective_permute(Tensor tensor, int[] sources, int[] targets) -> Tensor")
_library.define("collective_broadcast(Tensor[] tensors, int root, int[] members, int size) -> Tensor[]")

Groups = list[list[int]] | None


def _empty_like(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in tensors]


def _resized(x: torch.Tensor, dim: int, times: int = 1, over: int = 1) -> torch.Tensor:
    sizes = list(x.shape)
    sizes[dim] = sizes[dim] * times // over
    return torch.empty(sizes, dtype=x.dtype, device=x.device)


_library.impl("all_reduce", lambda tensors, kind, scale, members, size: _empty_like(tensors), "Meta")
_library.impl("collective_broadcast", lambda tensors, root, members, size: _empty_like(tensors), "Meta")
_library.impl("collective_permute", lambda x, sources, targets: _empty_like([x])[0], "Meta")
_library.impl("all_gather", lambda x, dim, members, size: _resized(x, dim, times=size), "Meta")
_library.impl("reduce_scatter", lambda x, kind, scale, dim, members, size: _resized(x, dim, over=size), "Meta")
_library.impl(
    "all_to_all",
    lambda x, split, concat, members, size: _resized(_resized(x, split, over=size), concat, times=size),
    "Meta",
)


def groups_of(members: Sequence[int], size: int) -> Groups:
    """The groups as lists; None for one of all ranks."""
    return [list(members[start : start + size]) for start in range(0, len(members), size)] or None


def _of_gathered(reduce: Callable[..., jax.Array]) -> Callable[[jax.Array, Groups], jax.Array]:
    """A reduction that XLA's collectives do not have under jax, of all ranks' arrays."""
    return lambda x, groups: reduce(lax.all_gather(x, AXIS, axis_index_groups=groups), axis=0).astype(x.dtype)


def _narrow_safe(reduce: Callable[..., jax.Array]) -> Callable[[jax.Array, Groups], jax.Array]:
    """Booleans as numbers, which is what collectives take."""

    def reduced(x: jax.Array, groups: Groups) -> jax.Array:
        numbers = x.astype(jnp.uint8) if x.dtype == bool else x
        return reduce(numbers, AXIS, axis_index_groups=groups).astype(x.dtype)

    return reduced


REDUCTIONS: dict[str, Callable[[jax.Array, Groups], jax.Array]] = {
    "sum": _narrow_safe(lax.psum),
    "min": _narrow_safe(lax.pmin),
    "max": _narrow_safe(lax.pmax),
    "mul": _of_gathered(jnp.prod),
    "and": _of_gathered(jnp.bitwise_and.reduce),
    "or": _of_gathered(jnp.bitwise_or.reduce),
    "xor": _of_gathered(jnp.bitwise_xor.reduce),
}


def in_order(collective: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """The collective, which XLA cannot move across those before it.

    Ranks may run programs that differ in other things (the first one alone logs something), and then XLA would not
    bring independent collectives into the same order everywhere. XLA:CPU takes `optimization_barrier` away, so each
    operand gets a 0 that comes from the last result.
    """

    def ordered(x: jax.Array, *arguments: Any) -> jax.Array:
        collector = checks.current()
        if collector.after is not None:
            bits = _as_bits(x)
            x = _from_bits(bits ^ collector.after.astype(bits.dtype), x.dtype)
        result = collective(x, *arguments)
        if result.size:
            first = _as_bits(lax.slice(result, [0] * result.ndim, [1] * result.ndim).reshape(1))
            collector.after = first.reshape(-1)[0].astype(jnp.int32) & collector.zero
        return result

    return ordered


def _together(tensors: Sequence[Any], function: Callable[[jax.Array], jax.Array]) -> list[jax.Array]:
    """A collective that treats all elements alike, of one array for all tensors of a dtype: there is one for many
    parameters."""
    results: dict[int, jax.Array] = {}
    for dtype in dict.fromkeys(x.dtype for x in tensors):
        numbers = [number for number, x in enumerate(tensors) if x.dtype == dtype]
        flat = [tensors[number].reshape(-1) for number in numbers]
        whole = in_order(function)(jnp.concatenate(flat) if len(flat) > 1 else flat[0])
        start = 0
        for number in numbers:
            x = tensors[number]
            results[number] = lax.slice_in_dim(whole, start, start + x.size).reshape(x.shape)
            start += x.size
    return [results[number] for number in range(len(tensors))]


def _scaled(x: jax.Array, scale: float) -> jax.Array:
    return x if scale == 1.0 else (x * scale).astype(x.dtype)


@op("lazy_runtime::all_reduce", collective=True)
def all_reduce(tensors, kind, scale, members, size):
    groups = groups_of(members, size)
    return _together(tensors, lambda x: _scaled(REDUCTIONS[kind](x, groups), scale))


@op("lazy_runtime::all_gather", collective=True)
@in_order
def all_gather(x, dim, members, size):
    return lax.all_gather(x, AXIS, axis=dim, axis_index_groups=groups_of(members, size), tiled=True)


@op("lazy_runtime::reduce_scatter", collective=True)
@in_order
def reduce_scatter(x, kind, scale, dim, members, size):
    groups = groups_of(members, size)
    if kind == "sum" and x.dtype != bool:
        found = lax.psum_scatter(x, AXIS, scatter_dimension=dim, axis_index_groups=groups, tiled=True)
    else:
        parts = lax.all_to_all(x, AXIS, dim, dim, axis_index_groups=groups, tiled=True)
        parts = jnp.stack(jnp.split(parts, size, axis=dim))
        found = _REDUCERS[kind](parts, axis=0).astype(x.dtype)
    return _scaled(found, scale)


_REDUCERS: dict[str, Callable[..., jax.Array]] = {
    "sum": jnp.any,  # of booleans
    "min": jnp.min,
    "max": jnp.max,
    "mul": jnp.prod,
    "and": jnp.bitwise_and.reduce,
    "or": jnp.bitwise_or.reduce,
    "xor": jnp.bitwise_xor.reduce,
}


@op("lazy_runtime::all_to_all", collective=True)
@in_order
def all_to_all(x, split_dim, concat_dim, members, size):
    return lax.all_to_all(x, AXIS, split_dim, concat_dim, axis_index_groups=groups_of(members, size), tiled=True)


@op("lazy_runtime::collective_permute", collective=True)
@in_order
def collective_permute(x, sources, targets):
    return lax.ppermute(x, AXIS, list(zip(sources, targets, strict=True)))


@op("lazy_runtime::collective_broadcast", collective=True)
def collective_broadcast(tensors, root, members, size):
    """Root's number is the one within its group, as every group has one."""
    groups = groups_of(members, size)
    place = lax.axis_index(AXIS)
    roots = jnp.array([group[root] for group in groups] if groups else [root])
    is_root = (place == roots).any()

    def from_root(x: jax.Array) -> jax.Array:
        bits = _as_bits(x)  # a sum would make 0 of -0
        kept = jnp.where(is_root, bits, jnp.zeros_like(bits))
        return _from_bits(lax.psum(kept, AXIS, axis_index_groups=groups), x.dtype)

    return _together(tensors, from_root)


_BITS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}


def _as_bits(x: jax.Array) -> jax.Array:
    if x.dtype == bool:
        return x.astype(jnp.uint8)
    if jnp.iscomplexobj(x):
        return _as_bits(jnp.stack([x.real, x.imag]))
    return lax.bitcast_convert_type(x, _BITS[x.dtype.itemsize])


def _from_bits(bits: jax.Array, dtype: Any) -> jax.Array:
    if dtype == np.bool_:
        return bits.astype(bool)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        real, imag = _from_bits(bits, jnp.finfo(dtype).dtype)
        return lax.complex(real, imag)
    return lax.bitcast_convert_type(bits, dtype)
