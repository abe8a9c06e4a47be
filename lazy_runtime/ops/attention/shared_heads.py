"""Keys and values that groups of queries' heads share (grouped-query attention)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from ...lowering.layout import Permuted, Repeated, logical
from ..indexing.reduction import opmath


def once(key: Any, value: Any) -> tuple[Any, Any]:
    """Keys and values with each head once, where both have been repeated alike."""
    pair = key, value
    if all(isinstance(x, Repeated) and not x.is_split for x in pair) and key.times == value.times:
        return key.physical, value.physical
    return logical(key, Permuted), logical(value, Permuted)


def repeated(x: Any, query: Any) -> Any:
    """Keys or values with as many heads as the queries, which may share them in groups."""
    if x.ndim < 3 or x.shape[-3] == query.shape[-3]:
        return x
    return jnp.repeat(logical(x), query.shape[-3] // x.shape[-3], axis=-3)


def summed(grad: Any, shape: Sequence[int]) -> Any:
    """The gradient of `repeated`.

    Args:
        shape: of the keys or values before.
    """
    if len(shape) < 3 or grad.shape[-3] == shape[-3]:
        return grad
    groups = opmath(logical(grad)).reshape(*shape[:-2], -1, *grad.shape[-2:])
    return groups.sum(-3).astype(grad.dtype)
