"""Where the greatest and least elements are.

`jnp.argmax` leaves its program to the time at which jax lowers it. What is traced for `lazy_runtime.jax.function` is
lowered by the user's own `jax.jit`, where 64-bit types are off and an argmax of int64 is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def argmax(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """As `jnp.argmax`: the first of equals, of nans before all; int32."""
    return _place(x, axis, keepdims, jax.lax.gt, _least)


def argmin(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """As `jnp.argmin`: the first of equals, of nans before all; int32."""
    return _place(x, axis, keepdims, jax.lax.lt, _greatest)


def _place(
    x: Any, axis: int | None, keepdims: bool, is_better: Callable[..., Any], worst: Callable[[np.dtype], Any]
) -> Any:
    x = jax.lax.stop_gradient(x)
    flat, over = (x.reshape(-1), 0) if axis is None else (x, axis % x.ndim)
    if flat.shape[over] == 0:
        raise ValueError("an extremum of no elements")

    def better(one: Any, other: Any) -> Any:
        (value, place), (other_value, other_place) = one, other
        wins = is_better(value, other_value) | (value != value)
        first = wins | ((value == other_value) & (place < other_place))
        return jnp.where(wins, value, other_value), jnp.where(first, place, other_place)

    places = jax.lax.broadcasted_iota(np.int32, flat.shape, over)
    start = np.asarray(worst(flat.dtype), flat.dtype), np.int32(0)
    _, found = jax.lax.reduce((flat, places), start, better, (over,))
    if not keepdims:
        return found
    return found.reshape((1,) * x.ndim) if axis is None else jnp.expand_dims(found, over)


def _least(dtype: np.dtype) -> Any:
    if dtype == np.bool_:
        return False
    return -np.inf if jnp.issubdtype(dtype, np.floating) else jnp.iinfo(dtype).min


def _greatest(dtype: np.dtype) -> Any:
    if dtype == np.bool_:
        return True
    return np.inf if jnp.issubdtype(dtype, np.floating) else jnp.iinfo(dtype).max
