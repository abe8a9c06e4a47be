"""Operators whose result's size depends on data.

XLA's shapes are static, so each of them is two programs: the first ends with the size, one integer that is read, and
the second, which is recorded like any other operator, gathers a result of that size. Nothing else leaves the device.
Inside of a compiled graph nothing can be read, and they raise; Dynamo breaks the graph before it comes to that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import torch

from ..common import errors, metrics
from ..compat.torch import DisableTorchDispatch
from ..execution import transfer
from ..ir.spec import TensorSpec
from ..lowering import checks
from ..lowering.layout import logical
from ..ops import registry
from ..ops.indexing.indexing import broadcasts
from ..ops.registry import Operator, arguments
from ..tensor.xla_tensor import XLATensor, make
from . import decompose, dispatch

aten = torch.ops.aten


def program(name: str, infer: Callable[..., Any], fallible: bool = False) -> Callable[[Callable[..., Any]], Operator]:
    """Makes an operator of our own out of a function of jax arrays: a part of the aten operator `name`.

    Args:
        infer: the same function of meta tensors, for what comes out.
        fallible: it uses `checks.require`.
    """

    def make_operator(function: Callable[..., Any]) -> Operator:
        target = registry.overload(name)
        assert target is not None

        def lowering(call: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            return function(*logical(list(args)))

        functools.update_wrapper(lowering, function, (), ())  # whose it is (`disk_key.py`)
        return Operator(name, target, lowering, infer, fallible=fallible)

    return make_operator


def read_size(func: Any, size: XLATensor) -> int:
    """Waits for the first program.

    Raises:
        NotImplementedError: within a graph that is being compiled.
    """
    if dispatch.current_trace() is not None:
        raise errors.DataDependentError(func)
    return int(transfer.to_host(size).item())


def provoke_errors(func: Any, *args: Any) -> None:
    """Raises what torch's CPU kernel says about these dtypes, ranks and arguments: calls it with tensors of the same
    dtype and rank that have one element, 0.
    """

    def small(arg: Any) -> Any:
        if not isinstance(arg, torch.Tensor):
            return arg
        return torch.zeros((1,) * arg.dim(), dtype=arg.dtype, device="cpu")

    with DisableTorchDispatch():
        func(*map(small, args))


# ---- where something is true


def _count(func: Any, x: XLATensor) -> int:
    return read_size(func, aten.count_nonzero.default(x))


@dispatch.handler("aten::nonzero")
def nonzero(func: Any, args: tuple, kwargs: dict[str, Any]) -> XLATensor:
    """Indices of what is not zero, one row each; in memory one column after another."""
    (x,) = args
    size = _count(func, x)
    metrics.count("xla::nonzero")
    found = aten.nonzero_static.default(x, size=size)
    spec = found.spec
    return make(found.handle, TensorSpec.of(spec.device, spec.dtype, spec.shape, (1, size)))


def _no_strides_of_nonzero(x: torch.Tensor, *, size: int, fill_value: int = -1) -> torch.Tensor:
    if size < 0:
        raise RuntimeError("nonzero_static: 'size' must be an non-negative integer")
    return torch.empty(size, x.dim(), dtype=torch.int64, device="meta")


@registry.op("aten::nonzero_static", infer=_no_strides_of_nonzero)
def nonzero_static(x, *, size, fill_value=-1, out):
    if 0 in out.shape or x.size == 0:
        return jnp.full(out.shape, fill_value, jnp.int64)
    return jnp.stack(jnp.nonzero(x, size=size, fill_value=fill_value), -1).astype(jnp.int64)


@dispatch.handler("aten::masked_select")
def masked_select(func: Any, args: tuple, kwargs: dict[str, Any]) -> XLATensor:
    """The elements of `x` where `mask` is true, both broadcast."""
    x, mask = args
    if mask.dtype is not torch.bool:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    decompose.check_devices(func, args, {})
    x, mask = (on_device(tensor, *args) for tensor in args)
    shape = _broadcast_shape(mask, x)
    numel = shape.numel()
    x, mask = (aten.reshape.default(aten.expand_copy.default(tensor, shape), (numel,)) for tensor in (x, mask))
    places = aten.nonzero_static.default(mask, size=_count(func, mask))
    return aten.index_select.default(x, 0, aten.reshape.default(places, (places.shape[0],)))


def _broadcast_shape(x: XLATensor, y: XLATensor) -> torch.Size:
    """The shape of both together, or torch's error."""
    try:
        return torch.broadcast_shapes(x.shape, y.shape)
    except RuntimeError:
        with DisableTorchDispatch():
            aten.add.Tensor(*(torch.zeros((), device="cpu").expand(tensor.shape) for tensor in (x, y)))
        raise


# ---- boolean masks as indices


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)


def on_device(tensor: torch.Tensor, *beside: Any) -> XLATensor:
    """The tensor, on the device of the first xla tensor beside it if it is on none."""
    if isinstance(tensor, XLATensor):
        return tensor
    return transfer.to_device(tensor, next(other.spec.device for other in beside if isinstance(other, XLATensor)))


def _check_mask(x: XLATensor, mask: torch.Tensor, first: int) -> None:
    for dim, size in enumerate(mask.shape, first):
        if dim >= x.dim() or x.shape[dim] != size:
            raise IndexError(
                f"The shape of the mask {list(mask.shape)} at index {dim - first} does not match "
                f"the shape of the indexed tensor {list(x.shape)} at index {dim}"
            )


def _check_indexed(x: torch.Tensor) -> None:
    if not isinstance(x, XLATensor):  # as for any device, with torch's words
        raise RuntimeError(f"indices should be either on cpu or on the same device as the indexed tensor ({x.device})")


def _without_masks(x: XLATensor, indices: Any) -> list[Any]:
    """The indices with every mask replaced by the positions that it selects."""
    found: list[Any] = []
    for index in indices:
        if not _is_mask(index):
            found.append(index)
            continue
        _check_mask(x, index, len(found))
        positions = aten.nonzero.default(on_device(index, x))
        found += [aten.select.int(positions, 1, column) for column in range(index.dim())]
    return found


@dispatch.handler("aten::index.Tensor")
def _index(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """`x[mask]`, and the indexing that needs no data."""
    x, indices = args
    _check_indexed(x)
    if any(map(_is_mask, indices)):
        if dispatch.current_trace() is not None:
            raise errors.DataDependentError(func)
        args = (x, _without_masks(x, indices))
    return dispatch.record(registry.table[func], args, kwargs)


@dispatch.handler("aten::index_put")
def _index_put(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """`x[mask] = values`. One mask alone needs no size: its lowering finds the value of each place by counting."""
    x, indices, values, *accumulate = args
    _check_indexed(x)
    if any(map(_is_mask, indices)):
        if len(indices) - indices.count(None) > 1:
            if dispatch.current_trace() is not None:
                raise errors.DataDependentError(func)
            indices = _without_masks(x, indices)
        else:
            values = _for_mask(func, x, indices, values, *accumulate)
    return dispatch.record(registry.table[func], (x, indices, values, *accumulate), kwargs)


def _for_mask(func: Any, x: XLATensor, indices: Any, values: torch.Tensor, accumulate: bool = False) -> torch.Tensor:
    """The values, which in all dimensions but the one along the selected places must fit.

    Raises:
        RuntimeError, IndexError: torch's own.
    """
    axis, mask = next((place, index) for place, index in enumerate(indices) if index is not None)
    _check_mask(x, mask, axis)
    if values.numel() == 1 and not accumulate:  # torch takes it for a `masked_fill_`
        values = values.to(x.dtype)
    refused = values.dtype is not x.dtype  # which torch says after what it says of the sizes
    if values.numel() == 1 and not refused:
        return values if values.dim() == 0 else aten.reshape.default(values, ())
    before, after = list(x.shape[:axis]), list(x.shape[axis + mask.dim() :])
    place = values.dim() - len(after) - 1  # the dimension along the selected places
    if refused or not broadcasts(values.shape, (*before, values.shape[place] if place >= 0 else 1, *after)):
        shape = [*before, _count(func, on_device(mask, x)), *after]
        if not (refused and broadcasts(values.shape, shape)):
            raise RuntimeError(
                f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to indexing result of "
                f"shape {shape}"
            )
        one = torch.zeros(1, dtype=torch.int64, device="cpu")
        with DisableTorchDispatch():  # torch's words for these dtypes
            aten.index_put.default(one.to(x.dtype), [one], one.to(values.dtype))
    return values


# ---- counting and repeating


def _scalar(*args: Any) -> torch.Tensor:
    return torch.empty((), dtype=torch.int64, device="meta")


@program("aten::bincount", _scalar)
def _largest(x):
    """The largest element; -1 if one is negative."""
    return jnp.where((x < 0).any(), -1, x.max().astype(jnp.int64))


def _bins(x: torch.Tensor, weights: torch.Tensor | None, size: int) -> torch.Tensor:
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype is torch.float32 else torch.float64
    return torch.empty(size, dtype=dtype, device="meta")


@program("aten::bincount", _bins)
def _bin(x, weights, size):
    if weights is None:
        return jnp.zeros(size, jnp.int64).at[x].add(1)
    dtype = jnp.float32 if weights.dtype == jnp.float32 else jnp.float64
    weights = weights.real if jnp.iscomplexobj(weights) else weights
    return jnp.zeros(size, dtype).at[x].add(weights.astype(dtype))


@dispatch.handler("aten::bincount")
def bincount(func: Any, args: tuple, kwargs: dict[str, Any]) -> XLATensor:
    """How often each number occurs, or the sum of its weights."""
    x, weights, minlength = arguments(func, args, kwargs)
    provoke_errors(func, x, None, min(minlength, 1))
    if x.numel() == 0 and x.dim() == 1:
        return dispatch.record(_bin, (x, None, minlength), {})
    if weights is not None and (weights.dim() != 1 or weights.shape != x.shape):
        raise RuntimeError("weights should be 1-d and have the same length as input")
    largest = read_size(func, dispatch.record(_largest, (x,), {}))
    if largest < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    return dispatch.record(_bin, (x, weights, max(largest + 1, minlength)), {})


@program("aten::repeat_interleave.Tensor", _scalar)
def _repeated(repeats):
    """The size of the result; -1 if a number of repetitions is negative."""
    return jnp.where((repeats < 0).any(), -1, repeats.sum(dtype=jnp.int64))


@registry.op("aten::repeat_interleave.Tensor", fallible=True)
def _repeat(repeats, *, output_size=None):
    if repeats.size:
        checks.require((repeats >= 0).all(), lambda _: RuntimeError(_NEGATIVE))
    total = repeats.sum(dtype=jnp.int64)
    checks.require(total == output_size, lambda _: RuntimeError("allocated size does not match required size"))
    if repeats.size == 0 or output_size == 0:
        return jnp.zeros(output_size, repeats.dtype)
    return jnp.repeat(jnp.arange(repeats.size, dtype=repeats.dtype), repeats, total_repeat_length=output_size)


_NEGATIVE = "repeats can not be negative"


@dispatch.handler("aten::repeat_interleave.Tensor")
def repeat_interleave(func: Any, args: tuple, kwargs: dict[str, Any]) -> XLATensor:
    """Each number as often as `repeats` says."""
    (repeats,) = args
    provoke_errors(func, repeats)
    size = kwargs.get("output_size")
    if size is None:
        size = 0 if repeats.numel() == 0 else read_size(func, dispatch.record(_repeated, (repeats,), {}))
        if size < 0:
            raise RuntimeError(_NEGATIVE)
    return dispatch.record(registry.table[func], (repeats,), {"output_size": size})


# ---- answers that are Python values


@dispatch.handler("aten::allclose")
def allclose(func: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    """A read, like `aten::equal`."""
    x, y, *rest = arguments(func, args, kwargs)
    decompose.check_devices(func, (x, y), {})
    x, y = on_device(x, y), on_device(y, x)
    provoke_errors(func, x, y, *rest)
    _broadcast_shape(x, y)
    return bool(read_size(func, aten.all.default(aten.isclose.default(x, y, *rest))))
