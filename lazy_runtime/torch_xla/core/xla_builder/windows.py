"""XLA's operations that look at windows: reductions, pooling, convolutions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ....lowering import precision
from .scattering import reduction_of

_PADDINGS = ("same", "valid")


def _padding(padding: Any) -> Any:
    """A padding as jax takes it: a name of XLA's, or the pairs of each dimension.

    Raises:
        ValueError: there is no padding of that name.
    """
    if isinstance(padding, str):
        if padding not in _PADDINGS:
            raise ValueError(f"padding: expected {' or '.join(_PADDINGS)}, or pairs of numbers, got {padding!r}")
        return padding.upper()
    return [tuple(each) for each in padding]


def _reduce(x: Any, start: Any, *, computation: Callable[..., Any], dimensions: Sequence[int]) -> Any:
    return lax.reduce(x, start, computation, tuple(dimensions))


def _reduce_all(x: Any, start: Any, *, computation: Callable[..., Any]) -> Any:
    return lax.reduce(x, start, computation, tuple(range(x.ndim)))


def _reduce_window(
    x: Any,
    start: Any,
    *,
    computation: Callable[..., Any],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Any = "valid",
) -> Any:
    return lax.reduce_window(x, start, computation, tuple(window_dimensions), tuple(window_strides), _padding(padding))


def _max_pool(
    x: Any,
    *,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    batch_dimension: int,
    feature_dimension: int,
    spatial_dimensions: Sequence[int],
    padding: Any = "valid",
) -> Any:
    """As XLA's client library has it: the kernel's sizes are of all dimensions, or of the spatial ones alone."""
    window, steps = _of_all(x, kernel_size, spatial_dimensions), _of_all(x, stride, spatial_dimensions)
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    least = -jnp.inf if is_float else jnp.iinfo(x.dtype).min
    return lax.reduce_window(x, jnp.asarray(least, x.dtype), lax.max, window, steps, _padding(padding))


def _of_all(x: Any, sizes: Sequence[int], spatial: Sequence[int]) -> tuple[int, ...]:
    if len(sizes) == x.ndim:
        return tuple(sizes)
    found = [1] * x.ndim
    for dimension, size in zip(spatial, sizes, strict=True):
        found[dimension] = size
    return tuple(found)


def _select_and_scatter(
    x: Any,
    source: Any,
    start: Any,
    *,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    select_computation: Callable[..., Any],
    scatter_computation: Callable[..., Any],
    padding: Any = "valid",
) -> Any:
    """Each window's selected element, found as XLA says: the first is kept while `select` says so of it and the next.

    jax has no such operation of its own. So windows are taken apart, one element of each is chosen, and what belongs to
    one element of the operand is combined by `scatter`, in order.
    """
    window, steps = tuple(window_dimensions), tuple(window_strides)
    pairs = lax.padtype_to_pads(x.shape, window, steps, _padding(padding)) if isinstance(padding, str) else padding
    places = jnp.arange(x.size, dtype=jnp.int32).reshape(x.shape)
    padded = lax.pad(places, jnp.int32(-1), [(low, high, 0) for low, high in pairs])
    limits = [steps[n] * (source.shape[n] - 1) + 1 for n in range(x.ndim)]
    best_place = jnp.full(source.shape, -1, jnp.int32)
    best = jnp.zeros(source.shape, x.dtype)
    values = x.reshape(-1)
    select = select_computation
    for _ in range(x.ndim):
        select = jax.vmap(select)
    for offset in itertools.product(*map(range, window)):
        ends = [begin + limit for begin, limit in zip(offset, limits, strict=True)]
        place = lax.slice(padded, offset, ends, steps)
        value = values[jnp.maximum(place, 0)]
        takes = (place >= 0) & ((best_place < 0) | ~select(best, value))
        best_place, best = jnp.where(takes, place, best_place), jnp.where(takes, value, best)

    given, where = source.reshape(-1), best_place.reshape(-1)
    begun = jnp.full(x.size, start, x.dtype)
    kind = reduction_of(scatter_computation, x.dtype)
    if kind in ("add", "mul", "min", "max"):
        where = jnp.where(where < 0, x.size, where)
        combined = getattr(begun.at[where], {"mul": "multiply"}.get(kind, kind))(given, mode="drop")
        return combined.reshape(x.shape)

    def combine(number: Any, found: Any) -> Any:
        place = where[number]
        made = scatter_computation(found[place], given[number])
        return jnp.where(place >= 0, found.at[place].set(made), found)

    return lax.fori_loop(0, source.size, combine, begun).reshape(x.shape)


_NAMES = (
    "input_batch_dimension",
    "input_feature_dimension",
    "input_spatial_dimensions",
    "kernel_output_feature_dimension",
    "kernel_input_feature_dimension",
    "kernel_spatial_dimensions",
    "output_batch_dimension",
    "output_feature_dimension",
    "output_spatial_dimensions",
)


def _conv(
    x: Any,
    kernel: Any,
    *,
    window_strides: Sequence[int],
    padding: Any = "valid",
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision_config: str | None = None,
    **dimensions: Any,
) -> Any:
    """A convolution. Without numbers of dimensions it is batch, feature, spatial; output, input, spatial."""
    numbers = None
    if dimensions:
        found = [dimensions[name] for name in _NAMES]
        of_each = [(batch, feature, *spatial) for batch, feature, spatial in (found[:3], found[3:6], found[6:])]
        numbers = lax.ConvDimensionNumbers(*of_each)
    wanted = lax.Precision[precision_config.upper()] if precision_config else precision.of(x.dtype)
    return lax.conv_general_dilated(
        x,
        kernel,
        tuple(window_strides),
        _padding(padding),
        lhs_dilation,
        rhs_dilation,
        numbers,
        feature_group_count,
        batch_group_count,
        wanted,
    )


RULES: dict[str, Callable[..., Any]] = {
    "Conv": _conv,
    "ConvGeneral": _conv,
    "ConvGeneralDilated": _conv,
    "ConvWithGeneralDimensions": _conv,
    "ConvWithGeneralPadding": _conv,
    "MaxPool": _max_pool,
    "Reduce": _reduce,
    "ReduceAll": _reduce_all,
    "ReduceWindow": _reduce_window,
    "SelectAndScatter": _select_and_scatter,
    "SelectAndScatterWithGeneralPadding": _select_and_scatter,
}
