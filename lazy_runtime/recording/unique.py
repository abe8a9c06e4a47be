"""The unique elements of a tensor, or slices along a dimension; two programs each (`data_dependent.py`)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch

from ..compat.torch import DisableTorchDispatch
from ..execution import transfer
from ..ops.registry import arguments
from . import dispatch
from .data_dependent import program, provoke_errors, read_size


def _prepared_alike(x: torch.Tensor, dim: int | None, consecutive: bool) -> tuple[torch.Tensor, ...]:
    rows = x.reshape(-1) if dim is None else x.movedim(dim, 0).reshape(x.shape[dim], -1)
    size, long = rows.shape[0], {"dtype": torch.int64, "device": "meta"}
    return torch.empty_like(rows), torch.empty(size, **long), torch.empty(size, **long), torch.empty((), **long)


@program("aten::unique_dim", _prepared_alike)
def _prepare(x, dim, consecutive):
    """The first program: brings equal rows next to each other.

    Returns:
        The rows in order, where each of them was in `x`, the number of the group of equal rows that each belongs to,
        and how many groups there are.
    """
    rows = x.reshape(-1) if dim is None else jnp.moveaxis(x, dim, 0).reshape(x.shape[dim], -1)
    order = jnp.arange(rows.shape[0])
    if not consecutive:
        order = jnp.argsort(rows, stable=True) if dim is None else _lexicographic(rows)
        rows = rows[order]
    differs = rows[1:] != rows[:-1]  # a nan differs from all others
    group = jnp.cumsum(differs if dim is None else differs.any(1), dtype=jnp.int64)
    group = jnp.concatenate([jnp.zeros(1, jnp.int64), group])
    return rows, order, group, group[-1] + 1


def _lexicographic(rows):
    """The order of the rows of a matrix by their first elements, then their second ones, and so on."""
    columns = rows.shape[1]

    def by_column(number, order):  # stable, so from the last column to the first
        column = jax.lax.dynamic_index_in_dim(rows, columns - 1 - number, 1, keepdims=False)
        return order[jnp.argsort(column[order], stable=True)]

    return jax.lax.fori_loop(0, columns, by_column, jnp.arange(rows.shape[0]))


def _collected_alike(
    rows: torch.Tensor, order: Any, group: Any, size: int, shape: list[int], dim: int | None, inverse_shape: list[int]
) -> tuple[torch.Tensor, ...]:
    unique = torch.empty(shape, dtype=rows.dtype, device="meta")
    unique = unique if dim is None else unique.movedim(0, dim)
    return unique, order.new_empty(inverse_shape), order.new_empty(size)


@program("aten::unique_dim", _collected_alike)
def _collect(rows, order, group, size, shape, dim, inverse_shape):
    """The second program: the first row of each of `size` groups, the group of each element of `x`, and the sizes of
    the groups.
    """
    starts = jnp.searchsorted(group, jnp.arange(size))
    unique = rows[starts].reshape(shape)
    inverse = jnp.zeros(order.shape, jnp.int64).at[order].set(group)
    counts = jnp.diff(starts, append=order.size).astype(jnp.int64)
    return unique if dim is None else jnp.moveaxis(unique, 0, dim), inverse.reshape(inverse_shape), counts


def _unique(func: Any, args: tuple, dim: int | None, consecutive: bool, inverse: bool, counts: bool) -> list[Any]:
    """The unique elements, the inverse, the counts; empty tensors instead of the last two where they are not wanted.

    Args:
        args: the operator's own, for its errors.
        dim: None for the elements.
    """
    x = args[0]
    device = x.spec.device
    if x.numel() == 0:  # no data: the result is torch's own, or its error
        with DisableTorchDispatch():
            found = func(torch.empty(x.shape, dtype=x.dtype, device="cpu"), *args[1:])
        return [transfer.to_device(part, device) for part in found]
    provoke_errors(func, *args)
    if dim is not None:
        dim %= x.dim()
    rows, order, group, number = dispatch.record(_prepare, (x, dim, consecutive), {})
    size = read_size(func, number)
    shape = [size] if dim is None else [size, *x.shape[:dim], *x.shape[dim + 1 :]]
    inverse_shape = list(x.shape) if dim is None else [x.shape[dim]]
    parts = list(dispatch.record(_collect, (rows, order, group, size, shape, dim, inverse_shape), {}))
    for place, wanted in ((1, inverse), (2, counts)):
        if not wanted:
            parts[place] = transfer.to_device(torch.empty(0, dtype=torch.int64, device="cpu"), device)
    return parts


@dispatch.handler("aten::_unique2")
def unique2(func: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, ...]:
    x, _, inverse, counts = arguments(func, args, kwargs)
    return tuple(_unique(func, (x,), None, False, inverse, counts))


@dispatch.handler("aten::_unique")
def unique(func: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, ...]:
    x, _, inverse = arguments(func, args, kwargs)
    return tuple(_unique(func, (x,), None, False, inverse, False)[:2])


@dispatch.handler("aten::unique_consecutive")
def unique_consecutive(func: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, ...]:
    x, inverse, counts, dim = arguments(func, args, kwargs)
    in_rows = dim is not None
    return tuple(_unique(func, (x, inverse, counts, dim), dim, True, inverse or in_rows, counts or in_rows))


@dispatch.handler("aten::unique_dim")
def unique_dim(func: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, ...]:
    x, dim, *flags = arguments(func, args, kwargs)
    return tuple(_unique(func, (x, dim, *flags), dim, False, True, True))


@dispatch.handler("aten::unique_dim_consecutive")
def unique_dim_consecutive(func: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, ...]:
    x, dim, *flags = arguments(func, args, kwargs)
    return tuple(_unique(func, (x, dim, *flags), dim, True, True, True))
