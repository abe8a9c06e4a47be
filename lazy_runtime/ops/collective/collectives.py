"""Collectives among the ranks of a job: each is one of XLA's in the program of every rank.

Groups come as the flat list of their members and the size of each (all alike); no members means all ranks. Those of
some of the ranks are filled up (`groups.partition`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from ...lowering import checks
from ...processes.process_job import AXIS
from ..registry import op
from . import groups as grouped
from .groups import Groups, as_bits, from_bits

_library = torch.library.Library("lazy_runtime", "FRAGMENT")
_library.define("all_reduce(Tensor[] tensors, str kind, float scale, int[] members, int size) -> Tensor[]")
_library.define("all_gather(Tensor tensor, int dim, int[] members, int size) -> Tensor")
_library.define("reduce_scatter(Tensor tensor, str kind, float scale, int dim, int[] members, int size) -> Tensor")
_library.define("all_to_all(Tensor tensor, int split_dim, int concat_dim, int[] members, int size) -> Tensor")
_library.define("collective_permute(Tensor tensor, int[] sources, int[] targets) -> Tensor")
_library.define("collective_broadcast(Tensor[] tensors, int root, int[] members, int size) -> Tensor[]")
_library.define("transfer(Tensor tensor, int source, int target) -> Tensor")
_library.define(
    "all_to_all_parts(Tensor tensor, int[] output_sizes, int[] input_sizes, int[] members, int place) -> Tensor"
)


def _empty_like(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in tensors]


def _resized(x: torch.Tensor, dim: int, times: int = 1, over: int = 1) -> torch.Tensor:
    sizes = list(x.shape)
    sizes[dim] = sizes[dim] * times // over
    return torch.empty(sizes, dtype=x.dtype, device=x.device)


_library.impl("all_reduce", lambda tensors, kind, scale, members, size: _empty_like(tensors), "Meta")
_library.impl("collective_broadcast", lambda tensors, root, members, size: _empty_like(tensors), "Meta")
_library.impl("collective_permute", lambda x, sources, targets: _empty_like([x])[0], "Meta")
_library.impl("transfer", lambda x, source, target: _empty_like([x])[0], "Meta")
_library.impl(
    "all_to_all_parts",
    lambda x, output_sizes, input_sizes, members, place: x.new_empty([sum(output_sizes), *x.shape[1:]]),
    "Meta",
)
_library.impl("all_gather", lambda x, dim, members, size: _resized(x, dim, times=size), "Meta")
_library.impl("reduce_scatter", lambda x, kind, scale, dim, members, size: _resized(x, dim, over=size), "Meta")
_library.impl(
    "all_to_all",
    lambda x, split, concat, members, size: _resized(_resized(x, split, over=size), concat, times=size),
    "Meta",
)


#: (array, groups, the size of this rank's) → the reduction
Reduction = Callable[[jax.Array, Groups, int], jax.Array]


def _of_gathered(reduce: Callable[..., jax.Array]) -> Reduction:
    """A reduction that XLA's collectives do not have under jax, of all ranks' arrays."""
    return lambda x, groups, size: reduce(grouped.gather(x, groups, size), axis=0).astype(x.dtype)


def _narrow_safe(reduce: Callable[..., jax.Array]) -> Reduction:
    """Booleans as numbers, which is what collectives take."""

    def reduced(x: jax.Array, groups: Groups, size: int) -> jax.Array:
        numbers = x.astype(jnp.uint8) if x.dtype == bool else x
        return reduce(numbers, AXIS, axis_index_groups=groups).astype(x.dtype)

    return reduced


REDUCTIONS: dict[str, Reduction] = {
    "sum": _narrow_safe(lax.psum),
    "min": _narrow_safe(lax.pmin),
    "max": _narrow_safe(lax.pmax),
    "mul": _of_gathered(jnp.prod),
    "and": _of_gathered(jnp.bitwise_and.reduce),
    "or": _of_gathered(jnp.bitwise_or.reduce),
    "xor": _of_gathered(jnp.bitwise_xor.reduce),
}


def require_reduction(kind: str, *dtypes: torch.dtype) -> None:
    """Checks that a reduction exists for these dtypes.

    Raises:
        TypeError: there is no such reduction of one of these dtypes.
    """
    for dtype in dtypes:
        is_integral = not (dtype.is_floating_point or dtype.is_complex)
        if kind in ("and", "or", "xor") and not is_integral:
            raise TypeError(f"there is no {kind!r} of {dtype}: only integers' bits can be combined")
        if kind in ("min", "max") and dtype.is_complex:
            raise TypeError(f"there is no {kind!r} of {dtype}: complex numbers have no order")


#: torch.distributed's names of them
_OF_TORCH = {"SUM": "sum", "AVG": "sum", "PRODUCT": "mul", "MIN": "min", "MAX": "max"}
_OF_TORCH |= {"BAND": "and", "BOR": "or", "BXOR": "xor"}


def reduction_of_torch(name: str, size: int, tensors: Sequence[torch.Tensor]) -> tuple[str, float]:
    """A reduction of torch.distributed (`AVG`) among `size` ranks: which of `REDUCTIONS`, and what scales its result.

    Raises:
        NotImplementedError: there is no such reduction.
        TypeError: there is none of these tensors' dtypes.
    """
    kind = _OF_TORCH.get(name)
    if kind is None:
        raise NotImplementedError(f"the reduction {name} over xla tensors: there are {', '.join(_OF_TORCH)}")
    dtypes = [tensor.dtype for tensor in tensors]
    require_reduction(kind, *dtypes)
    if name != "AVG":
        return kind, 1.0
    for dtype in dtypes:
        if not (dtype.is_floating_point or dtype.is_complex):
            raise TypeError(f"there is no average of {dtype}: it is no integer")
    return kind, 1.0 / size


def in_order(collective: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """The collective, which XLA can neither move across those before it nor compute without the other ranks.

    Ranks may run programs that differ in other things (the first one alone logs something), and then XLA would not
    bring independent collectives into the same order everywhere. XLA:CPU takes `optimization_barrier` away, so each
    operand gets a 0 that comes from the last result. The first one's comes from outside: what is constant in this
    rank's program need not be in another's, and XLA would compute a collective of it itself.
    """

    def ordered(x: jax.Array, *arguments: Any) -> jax.Array:
        collector = checks.current()
        zero = collector.zero if collector.after is None else collector.after
        bits = as_bits(x)
        x = from_bits(bits ^ zero.astype(bits.dtype), x.dtype)
        result = collective(x, *arguments)
        if result.size:
            first = as_bits(lax.slice(result, [0] * result.ndim, [1] * result.ndim).reshape(1))
            collector.after = first.reshape(-1)[0].astype(jnp.int32) & collector.zero
        return result

    return ordered


def _together(tensors: Sequence[Any], function: Callable[[jax.Array], jax.Array]) -> list[jax.Array]:
    """A collective that treats all elements alike, of one array for all tensors of a dtype: there is one for many
    parameters.
    """
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
    groups = grouped.partition(members, size)
    return _together(tensors, lambda x: _scaled(REDUCTIONS[kind](x, groups, size), scale))


@op("lazy_runtime::all_gather", collective=True)
@in_order
def all_gather(x, dim, members, size):
    return grouped.gather(x, grouped.partition(members, size), size, dim)


@op("lazy_runtime::reduce_scatter", collective=True)
@in_order
def reduce_scatter(x, kind, scale, dim, members, size):
    groups = grouped.partition(members, size)
    if kind == "sum" and x.dtype != bool:
        found = grouped.scatter_sum(x, groups, size, dim)
    else:
        parts = grouped.exchange(x, groups, size, dim, dim)
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
    return grouped.exchange(x, grouped.partition(members, size), size, split_dim, concat_dim)


@op("lazy_runtime::all_to_all_parts", collective=True)
def all_to_all_parts(x, output_sizes, input_sizes, members, place):
    """An exchange with each of the others that there is something to exchange with, both parts filled up to the longer:
    the sizes of what others exchange a rank does not know.

    Everybody goes through the pairs in one order, of rounds in which each rank has one partner at most.
    """
    size = len(input_sizes)
    ranks = members or range(size)
    parts = jnp.split(x, [sum(input_sizes[:n]) for n in range(1, size)])
    found = [jnp.zeros((length, *x.shape[1:]), x.dtype) for length in output_sizes]
    found[place] = parts[place]
    for turn in range(size):
        other = (turn - place) % size
        length = max(input_sizes[other], output_sizes[other])
        if other == place or not length:
            continue
        pair = sorted((ranks[place], ranks[other]))
        theirs = _swapped(_filled(parts[other], length), pair)[pair.index(ranks[other])]
        found[other] = theirs[: output_sizes[other]]
    return jnp.concatenate(found)


def _filled(x: jax.Array, length: int) -> jax.Array:
    return jnp.pad(x, [(0, length - x.shape[0]), *[(0, 0)] * (x.ndim - 1)])


@op("lazy_runtime::transfer", collective=True)
def transfer(x, source, target):
    """The source's array, for both."""
    return _swapped(x, sorted((source, target)))[int(source > target)]


@in_order
def _swapped(x: jax.Array, pair: Sequence[int]) -> jax.Array:
    """What two ranks have, for both. A permutation would be the collective for it, but all devices of a program meet
    for one, whoever they are in it; for this, the two.
    """
    return grouped.gather(x, grouped.partition(pair, 2), 2)


@op("lazy_runtime::collective_permute", collective=True)
@in_order
def collective_permute(x, sources, targets):
    return lax.ppermute(x, AXIS, list(zip(sources, targets, strict=True)))


@op("lazy_runtime::collective_broadcast", collective=True)
def collective_broadcast(tensors, root, members, size):
    """Root's number is the one within its group, as every group has one."""
    groups = grouped.partition(members, size)
    is_root = grouped.is_nth(groups, root)

    def from_root(x: jax.Array) -> jax.Array:
        bits = as_bits(x)  # a sum would make 0 of -0
        kept = jnp.where(is_root, bits, jnp.zeros_like(bits))
        return from_bits(lax.psum(kept, AXIS, axis_index_groups=groups), x.dtype)

    return _together(tensors, from_root)
