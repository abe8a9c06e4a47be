"""Histograms. The bins follow aten/src/ATen/native/cpu/HistogramKernel.cpp step by step: an element on an edge belongs
where its roundings put it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch

from ...compat.torch import tree_map
from ...ir import dtypes
from ...lowering import checks
from ...tensor import host_arrays
from ..registry import op, overload
from .reduction import opmath
from .sorting import search


def _refusals(name: str, *args: Any, **kwargs: Any) -> None:
    """Runs the CPU kernel on zeros, for its errors: there is no meta kernel, or one that checks less."""

    def zeros(x: Any) -> Any:
        return torch.zeros((), dtype=x.dtype, device="cpu").expand(x.shape) if isinstance(x, torch.Tensor) else x

    target: Any = overload(name)
    target(*tree_map(zeros, args), **tree_map(zeros, kwargs))


def _inferred(name: str, alike: Callable[..., Any]) -> Callable[..., Any]:
    """`alike(x, bins)` gives the results' looks, torch's fake tensors (`torch.compile`) included."""

    def infer(x: torch.Tensor, bins: Any = 100, *args: Any, **kwargs: Any) -> Any:
        if type(x) is torch.Tensor:
            _refusals(name, x, bins, *args, **kwargs)
        return alike(x, bins)

    return infer


# ---- the edges


def _require_finite(left, right, words: str) -> None:
    """Requires finite bounds of the data; `words` say whose, with `{}` for them."""
    pair = jnp.stack([left, right]).astype(jnp.float32)
    value = jax.lax.bitcast_convert_type(pair, jnp.uint32).astype(jnp.int64)

    def error(packed: int) -> Exception:
        bounds = struct.unpack("<ff", struct.pack("<Q", packed & (2**64 - 1)))
        return RuntimeError(words.format(", ".join(f"{bound:g}" for bound in bounds)))

    checks.require(jnp.isfinite(pair).all(), error, value[0] | (value[1] << 32))


def _bounds(x, dim: int, given):
    """The outermost edges in one dimension of `x` (a column), as `histogram` and `histogramdd` choose them."""
    if given is not None or x.size == 0:
        left, right = (0.0, 1.0) if given is None else given
        return (left - 0.5, right + 0.5) if left == right else (left, right)
    left, right = x.min(), x.max()
    _require_finite(left, right, f"torch.histogramdd: dimension {dim}'s range [{{}}] is not finite")
    half = jnp.where(left == right, 0.5, 0).astype(x.dtype)
    return left - half, right + half


def _linspace(left, right, count: int, dtype):
    """`count` edges: torch's own between two numbers, else counted from both ends like those."""
    if isinstance(left, float):
        return jnp.asarray(
            host_arrays.to_numpy(torch.linspace(left, right, count, dtype=dtypes.to_torch(dtype), device="cpu"))
        )
    step = (right - left) / jnp.asarray(count - 1, left.dtype)
    place = jnp.arange(count)
    up, down = place.astype(left.dtype), (count - 1 - place).astype(left.dtype)
    return jnp.where(place < count // 2, left + step * up, right - step * down)


def _all_edges(rows, bins, given):
    pairs = [None] * len(bins) if given is None else [given[2 * dim : 2 * dim + 2] for dim in range(len(bins))]
    return [
        _linspace(*_bounds(rows[:, dim], dim, pair), count + 1, rows.dtype)
        for dim, (count, pair) in enumerate(zip(bins, pairs, strict=True))
    ]


# ---- which bin an element belongs to


def _linear(x, edges):
    """By division, for edges at equal distances; may be one off."""
    bins = jnp.asarray(edges.size - 1, x.dtype)
    return ((x - edges[0]) * bins / (edges[-1] - edges[0])).astype(jnp.int64)


def _linear_exact(x, edges):
    """By division, and then a look at the neighbours."""
    guess = _linear(x, edges)
    first, last = jnp.maximum(guess - 1, 0), jnp.minimum(guess + 2, edges.size)
    position = first - 1
    for offset in range(3):
        place = first + offset
        position += (place < last) & (edges[jnp.clip(place, 0, edges.size - 1)] <= x)
    return position


def _by_search(x, edges):
    return search(edges, x, right=True) - 1


def _count(rows, edges, locate, weight, density, dtype):
    """The histogram of `rows` (one element each, its dimensions along the second axis)."""
    sizes = [edge.size - 1 for edge in edges]
    inside = jnp.ones(rows.shape[0], bool)
    flat = jnp.zeros(rows.shape[0], jnp.int64)
    for dim, (edge, size) in enumerate(zip(edges, sizes, strict=True)):
        x = rows[:, dim]
        inside &= (x >= edge[0]) & (x <= edge[-1])
        position = locate(jnp.where(inside, x, edge[0]), edge)
        flat = flat * size + jnp.minimum(position, size - 1)  # the last bin includes its right edge
    total = math.prod(sizes)
    flat = jnp.where(inside, flat, total)
    values = jnp.ones(flat.shape, jnp.int64) if weight is None else opmath(weight.reshape(-1))
    found = jnp.zeros(total, values.dtype).at[flat].add(values, mode="drop").reshape(sizes)
    if density:
        found = found / found.sum()
        for dim, edge in enumerate(edges):
            found = found / jnp.diff(edge).reshape(-1, *(1 for _ in sizes[dim + 1 :]))
    return found.astype(dtypes.to_numpy(dtype))


def _infer_histc(x: torch.Tensor, bins: int = 100, *args: Any, **kwargs: Any) -> torch.Tensor:
    """The CPU has floats alone. Code for accelerators counts integers with it, as CUDA does, in ways that can be
    captured (transformers' mixtures of experts).
    """
    if type(x) is torch.Tensor:
        counts = not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)
        _refusals("aten::histc", x.float() if counts else x, bins, *args, **kwargs)
    return x.new_empty(bins)


def _histc_of_integers(x, bins, least, largest, dtype):
    """aten/src/ATen/native/cuda/SummaryOps.cu, `getBin`, step by step."""
    x = x.astype(jnp.int64)
    if least == largest and x.size:
        least, largest = x.min(), x.max()
    one = jnp.where(least == largest, 1, 0)
    least, largest = least - one, largest + one
    inside = (x >= least) & (x <= largest)
    place = jnp.minimum((x - least) * bins // (largest - least), bins - 1)
    return jnp.zeros(bins, dtypes.to_numpy(dtype)).at[jnp.where(inside, place, bins)].add(1, mode="drop")


@op("aten::histc", fallible=True, infer=_infer_histc)
def histc(x, bins=100, min=0, max=0, *, out):
    x = x.reshape(-1)
    if not out.dtype.is_floating_point:
        return _histc_of_integers(x, bins, int(min), int(max), out.dtype)
    if min != max or x.size == 0:
        left, right = (float(min), float(max)) if min != max else (min - 1.0, max + 1.0)
    else:
        least, largest = x.min(), x.max()
        _require_finite(least, largest, "torch.histc: range of [{}] is not finite")
        one = jnp.where(least == largest, 1, 0).astype(x.dtype)
        left, right = least - one, largest + one
    edges = _linspace(left, right, bins + 1, x.dtype)
    return _count(x[:, None], [edges], _linear, None, False, out.dtype)


@op(
    "aten::histogram.bin_ct",
    fallible=True,
    infer=_inferred("aten::histogram.bin_ct", lambda x, bins: (x.new_empty(bins), x.new_empty(bins + 1))),
)
def histogram_of_count(x, bins=100, *, range=None, weight=None, density=False, out):
    rows = x.reshape(-1, 1)
    edges = _all_edges(rows, [bins], range)
    return _count(rows, edges, _linear_exact, weight, density, out[0].dtype), edges[0]


@op(
    "aten::histogram.bins_tensor",
    infer=_inferred(
        "aten::histogram.bins_tensor", lambda x, bins: (x.new_empty(bins.numel() - 1), x.new_empty(bins.numel()))
    ),
)
def histogram_of_edges(x, bins, *, weight=None, density=False, out):
    return _count(x.reshape(-1, 1), [bins], _by_search, weight, density, out[0].dtype), bins


def _rows(x, dims: int):
    return x.reshape(math.prod(x.shape[:-1]), dims)


@op(
    "aten::_histogramdd_bin_edges",
    fallible=True,
    infer=_inferred("aten::_histogramdd_bin_edges", lambda x, bins: [x.new_empty(count + 1) for count in bins]),
)
def histogramdd_bin_edges(x, bins, *, range=None, weight=None, density=False):
    return _all_edges(_rows(x, len(bins)), bins, range)


@op(
    "aten::_histogramdd_from_bin_cts",
    fallible=True,
    infer=_inferred("aten::_histogramdd_from_bin_cts", lambda x, bins: x.new_empty(bins)),
)
def histogramdd_of_counts(x, bins, *, range=None, weight=None, density=False, out):
    rows = _rows(x, len(bins))
    return _count(rows, _all_edges(rows, bins, range), _linear_exact, weight, density, out.dtype)


@op(
    "aten::_histogramdd_from_bin_tensors",
    infer=_inferred(
        "aten::_histogramdd_from_bin_tensors", lambda x, bins: x.new_empty([edges.numel() - 1 for edges in bins])
    ),
)
def histogramdd_of_edges(x, bins, *, weight=None, density=False, out):
    return _count(_rows(x, len(bins)), bins, _by_search, weight, density, out.dtype)
