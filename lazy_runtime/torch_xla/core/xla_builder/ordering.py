"""Sorting by any comparator: jax sorts by its own alone.

A merge sort from below. Each element finds its place among the other run by bisection, so that each level is a few
vectorized comparisons: O(n log² n) in all. Equal elements keep their order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def sort(*arrays: Any, comparator: Callable[..., Any], dimension: int = -1, is_stable: bool = False) -> Any:
    """Sorts arrays of one shape together along a dimension.

    Args:
        comparator: whether one element is before another: two scalars of each array, in order of the arrays.
        is_stable: accepted, since it always is.
    """
    dimension %= arrays[0].ndim
    moved = [jnp.moveaxis(x, dimension, -1) for x in arrays]
    shape = moved[0].shape
    rows = [x.reshape(-1, shape[-1]) for x in moved]
    orders = jax.vmap(lambda *row: _order(row, comparator))(*rows)
    found = [jnp.moveaxis(jnp.take_along_axis(x, orders, 1).reshape(shape), -1, dimension) for x in rows]
    return tuple(found) if len(found) > 1 else found[0]


def _order(row: tuple[Any, ...], comparator: Callable[..., Any]) -> Any:
    """The numbers of the elements in order."""
    size = row[0].shape[0]
    room = 1 << max(size - 1, 0).bit_length()  # numbers past the end are after all others

    def compare(left: Any, right: Any) -> Any:
        return comparator(*[each for x in row for each in (x[left], x[right])])

    def before(left: Any, right: Any) -> Any:
        found = jax.vmap(compare)(jnp.minimum(left, size - 1), jnp.minimum(right, size - 1))
        return (left < size) & ((right >= size) | found)

    order = jnp.arange(room)
    places = jnp.arange(room)
    width = 1
    while width < room:
        in_right = (places // width) % 2 == 1
        own_run = places - places % width
        other_run = jnp.where(in_right, own_run - width, own_run + width)
        low, high = jnp.zeros_like(places), jnp.full_like(places, width)
        for _ in range(width.bit_length()):  # how many of the other run are before it: of 0 to `width`
            middle = (low + high) // 2
            other = order[jnp.minimum(other_run + middle, room - 1)]
            # an element of the left run comes before its equals in the right one
            is_before = jnp.where(in_right, ~before(order, other), before(other, order))
            open_ = low < high
            low = jnp.where(open_ & is_before, middle + 1, low)
            high = jnp.where(open_ & ~is_before, middle, high)
        begin = jnp.minimum(own_run, other_run)
        order = jnp.zeros_like(order).at[begin + places % width + low].set(order)
        width *= 2
    return order[:size]
