"""An operator of torch's on the host, within a lowering."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..compat.torch import (
    DisableTorchDispatch,
    OpOverload,
    schema_of,
    tree_flatten,
    tree_leaves,
    tree_unflatten,
)
from ..lowering import checks
from ..tensor import host_arrays


def on_host(
    func: OpOverload,
    arguments: Sequence[Any],
    results: Sequence[Any],
    grid: jax.sharding.Mesh | None = None,
) -> list[Any]:
    """The operator on the host, within a lowering: for platforms whose programs cannot call torch's kernels.

    Args:
        arguments: all of the schema's, in order.
        results: `jax.ShapeDtypeStruct` of each result, None for one that is undefined.
        grid: of the devices that the program is sharded over.
    """
    leaves, structure = tree_flatten(list(arguments))
    places = [number for number, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
    wide = {place: np.dtype(leaves[place].dtype) for place in places}
    number = checks.current_call()

    def run(*arrays: Any) -> list[np.ndarray]:
        filled = list(leaves)
        for place, array in zip(places, arrays, strict=True):
            filled[place] = host_arrays.from_numpy(_widened(np.asarray(array), wide[place]))
        try:
            found = _call_on_host(func, tree_unflatten(filled, structure))
        except Exception as error:
            raise RuntimeError(f"[aten #{number} {type(error).__name__.lstrip('_')}] {error} [end]") from error
        tensors = tree_leaves(found)
        found = [x.contiguous() for x, like in zip(tensors, results, strict=True) if like is not None]
        return [_halves(host_arrays.to_numpy(x)) for x in found]

    wanted = [like for like in results if like is not None]
    halves = [jax.eval_shape(_narrowed, like) for like in wanted]
    narrowed = _whole([_narrowed(leaves[place]) for place in places], grid)
    made = _whole(jax.pure_callback(run, halves, *narrowed), grid)
    restored = iter([_restored(x, like) for x, like in zip(made, wanted, strict=True)])
    return [None if like is None else next(restored) for like in results]


def _whole(arrays: Sequence[jax.Array], grid: jax.sharding.Mesh | None) -> Sequence[jax.Array]:
    """The arrays, all of each on every device: a callback has one, and XLA takes detours between that and parts."""
    if grid is None:
        return arrays
    sharding = jax.sharding.NamedSharding(grid, jax.sharding.PartitionSpec())
    return [jax.lax.with_sharding_constraint(x, sharding) for x in arrays]


# A callback runs on a thread of the platform's, where jax narrows 64-bit types (`enable_x64` belongs to a thread), so
# they cross as pairs of 32-bit integers.
_WIDE = frozenset(map(np.dtype, ("int64", "uint64", "float64", "complex128")))


def _narrowed(x: jax.Array) -> jax.Array:
    """The array with 64-bit elements as their 32-bit halves, along one more dimension."""
    if x.dtype == np.complex128:
        x = jnp.stack([x.real, x.imag], -1)
    if x.dtype not in _WIDE:
        return x
    halves = jax.lax.bitcast_convert_type(x, jnp.uint32)
    return halves


def _restored(x: jax.Array, like: jax.ShapeDtypeStruct) -> jax.Array:
    """Undoes `_narrowed`."""
    if like.dtype not in _WIDE:
        return x
    if like.dtype == np.complex128:
        parts = jax.lax.bitcast_convert_type(x, jnp.float64)
        return jax.lax.complex(parts[..., 0], parts[..., 1])
    return jax.lax.bitcast_convert_type(x, like.dtype)


def _halves(x: np.ndarray) -> np.ndarray:
    """`_narrowed` on the host."""
    if x.dtype not in _WIDE:
        return x
    parts = (2, 2) if x.dtype == np.complex128 else (2,)
    return np.ascontiguousarray(x).reshape(-1).view(np.uint32).reshape(*x.shape, *parts)


def _widened(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """`_restored` on the host."""
    if dtype not in _WIDE:
        return x
    shape = x.shape[: -2 if dtype == np.complex128 else -1]
    return np.ascontiguousarray(x).reshape(-1).view(dtype).reshape(shape)


def _call_on_host(func: OpOverload, arguments: Sequence[Any]) -> Any:
    positional = [argument for argument in schema_of(func).arguments if not argument.kwarg_only]
    named = schema_of(func).arguments[len(positional) :]
    kwargs = {argument.name: value for argument, value in zip(named, arguments[len(positional) :], strict=True)}
    with DisableTorchDispatch(), torch.no_grad():
        return func(*arguments[: len(positional)], **kwargs)
