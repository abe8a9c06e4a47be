"""Groups of some of the ranks, in programs that know all of them.

XLA's replica groups are a partition of all devices of a program. A rank knows its own group only, and what the others
do meanwhile is their affair: they may be in other collectives, or in none. So its program says anything of them, and it
does not matter what: at run time only the members of a group meet, on CPUs (gloo) and GPUs (NCCL) in a clique that is
known by their devices. The others are put into groups of the same size, because XLA wants that of everything but
reductions; where the number of ranks does not allow it, they are one group, and what moves elements is made of
reductions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...processes.process_job import AXIS

Groups = list[list[int]] | None


def partition(members: Sequence[int], size: int) -> Groups:
    """All ranks in groups; None for one of all.

    Args:
        members: of some groups, one after the other; empty for one of all ranks.
        size: of each.
    """
    count = lax.axis_size(AXIS)
    if len(members) in (0, count) and size in (0, count) and list(members) == sorted(members):
        return None
    known = _cut(members, size)
    rest = sorted(set(range(count)) - set(members))
    return known + (_cut(rest, size) if len(rest) % size == 0 else [rest])


def _cut(ranks: Sequence[int], size: int) -> list[list[int]]:
    return [list(ranks[start : start + size]) for start in range(0, len(ranks), size)]


def _are_equal(groups: Groups) -> bool:
    return groups is None or len({len(group) for group in groups}) == 1


def _place(groups: list[list[int]]) -> jax.Array:
    """This rank's number within its group."""
    places = {rank: place for group in groups for place, rank in enumerate(group)}
    return jnp.array([places[rank] for rank in range(len(places))])[lax.axis_index(AXIS)]


def is_nth(groups: Groups, number: int) -> jax.Array:
    """Whether this rank is the one of that number within its group."""
    if groups is None:
        return lax.axis_index(AXIS) == number
    return _place(groups) == number


def gather(x: jax.Array, groups: Groups, size: int, dim: int | None = None) -> jax.Array:
    """The group's arrays, along a new first dimension or side by side along `dim`."""
    tiled = dim is not None
    if _are_equal(groups):
        return lax.all_gather(x, AXIS, axis=dim or 0, axis_index_groups=groups, tiled=tiled)
    assert groups is not None
    bits = as_bits(x)
    room = jnp.zeros((size, *bits.shape), bits.dtype)
    whole = lax.psum(lax.dynamic_update_index_in_dim(room, bits, _place(groups), 0), AXIS, axis_index_groups=groups)
    parts = jnp.stack([from_bits(whole[place], x.dtype) for place in range(size)])
    return _side_by_side(parts, dim) if tiled else parts


def exchange(x: jax.Array, groups: Groups, size: int, split_dim: int, concat_dim: int) -> jax.Array:
    """The n-th of `size` parts along one dimension goes to the n-th of the group; what comes is side by side along
    another one.
    """
    if _are_equal(groups):
        return lax.all_to_all(x, AXIS, split_dim, concat_dim, axis_index_groups=groups, tiled=True)
    assert groups is not None
    length = x.shape[split_dim] // size
    start = _place(groups) * length
    parts = lax.dynamic_slice_in_dim(gather(x, groups, size), start, length, axis=split_dim + 1)
    return _side_by_side(parts, concat_dim)


def scatter_sum(x: jax.Array, groups: Groups, size: int, dim: int) -> jax.Array:
    """This rank's part of the sum."""
    if _are_equal(groups):
        return lax.psum_scatter(x, AXIS, scatter_dimension=dim, axis_index_groups=groups, tiled=True)
    assert groups is not None
    length = x.shape[dim] // size
    whole = lax.psum(x, AXIS, axis_index_groups=groups)
    return lax.dynamic_slice_in_dim(whole, _place(groups) * length, length, axis=dim)


def _side_by_side(parts: jax.Array, dim: int) -> jax.Array:
    return jnp.concatenate(list(parts), axis=dim)


# ---- for what must arrive bit for bit through a sum with zeros

_BITS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}


def as_bits(x: jax.Array) -> jax.Array:
    """Integers for the array's bits; of complex numbers, those of both parts along a new first dimension."""
    if x.dtype == bool:
        return x.astype(jnp.uint8)
    if jnp.iscomplexobj(x):
        return as_bits(jnp.stack([x.real, x.imag]))
    return lax.bitcast_convert_type(x, _BITS[x.dtype.itemsize])


def from_bits(bits: jax.Array, dtype: Any) -> jax.Array:
    """The array of these bits (`as_bits`)."""
    if dtype == np.bool_:
        return bits.astype(bool)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        real, imag = from_bits(bits, jnp.finfo(dtype).dtype)
        return lax.complex(real, imag)
    return lax.bitcast_convert_type(bits, dtype)
