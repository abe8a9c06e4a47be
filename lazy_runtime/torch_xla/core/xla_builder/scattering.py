"""XLA's gather and scatter over jax's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def gather(
    x: Any,
    indices: Any,
    *,
    offset_dims: Sequence[int] = (),
    collapsed_slice_dims: Sequence[int] = (),
    start_index_map: Sequence[int] = (),
    index_vector_dim: int | None = None,
    slice_sizes: Sequence[int] | None = None,
    indices_are_sorted: bool = False,
) -> Any:
    if slice_sizes is None:  # PyTorch/XLA's method takes none: one element of what is collapsed, all of the rest
        slice_sizes = [1 if dim in collapsed_slice_dims else size for dim, size in enumerate(x.shape)]
    numbers = lax.GatherDimensionNumbers(tuple(offset_dims), tuple(collapsed_slice_dims), tuple(start_index_map))
    return lax.gather(
        x,
        _vectors_last(indices, index_vector_dim),
        numbers,
        tuple(slice_sizes),
        indices_are_sorted=indices_are_sorted,
        mode="clip",  # as XLA's operation does
    )


def _vectors_last(indices: Any, index_vector_dim: int | None) -> Any:
    """jax wants the dimension of index vectors last; XLA may have it anywhere, and past the end for scalars."""
    if index_vector_dim == indices.ndim:
        return indices[..., None]
    return indices if index_vector_dim is None else jnp.moveaxis(indices, index_vector_dim, -1)


def scatter(
    x: Any,
    indices: Any,
    updates: Any,
    *,
    computation: Callable[..., Any],
    update_window_dims: Sequence[int] = (),
    inserted_window_dims: Sequence[int] = (),
    scatter_dims_to_operand_dims: Sequence[int] = (),
    index_vector_dim: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
) -> Any:
    numbers = lax.ScatterDimensionNumbers(
        tuple(update_window_dims), tuple(inserted_window_dims), tuple(scatter_dims_to_operand_dims)
    )
    function = _SCATTERS[_kind_of(computation, x.dtype)]
    return function(
        x,
        _vectors_last(indices, index_vector_dim),
        updates,
        numbers,
        indices_are_sorted=indices_are_sorted,
        unique_indices=unique_indices,
        mode=lax.GatherScatterMode.FILL_OR_DROP,
    )


_SCATTERS: dict[str, Any] = {
    "add": lax.scatter_add,
    "mul": lax.scatter_mul,
    "min": lax.scatter_min,
    "max": lax.scatter_max,
    "second": lax.scatter,
}


def _kind_of(computation: Callable[..., Any], dtype: Any) -> str:
    kind = reduction_of(computation, dtype)
    if kind is None:
        raise NotImplementedError(
            "Scatter: jax scatters by the sum, the product, the least, the greatest or the second of two values, and "
            "the computation is none of these"
        )
    return kind


def reduction_of(computation: Callable[..., Any], dtype: Any) -> str | None:
    """Which reduction a computation of two scalars is: "add", "mul", "min", "max", or "second"; None for another."""
    scalar = jax.ShapeDtypeStruct((), dtype)
    jaxpr = jax.make_jaxpr(lambda x, y: computation(x, y))(scalar, scalar).jaxpr
    equations, given = jaxpr.eqns, list(jaxpr.invars)
    if not equations:
        return "second" if list(jaxpr.outvars) == given[1:] else None
    if len(equations) > 1 or set(map(id, equations[0].invars)) != set(map(id, given)):
        return None
    name = equations[0].primitive.name
    return name if name in _SCATTERS else None
