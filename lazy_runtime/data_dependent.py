"""Operators whose result's size depends on data.

XLA's shapes are static, so the data is read: what is pending runs, and the next operators start from the result.
Counted as `aten::nonzero`, since the read is what costs.
"""

from __future__ import annotations

from typing import Any

import torch

from . import dispatch, errors, metrics, transfer
from .tensor import XLATensor

aten = torch.ops.aten


@dispatch.handler("aten::nonzero")
def _nonzero(func: Any, args: tuple, kwargs: dict[str, Any]) -> XLATensor:
    """Indices of what is not zero, one row each."""
    (x,) = args
    if dispatch.current_trace() is not None:
        raise NotImplementedError(errors.data_dependent(func))
    metrics.count("aten::nonzero")
    return transfer.to_device(transfer.to_host(x).nonzero().contiguous(), x.spec.device)


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)


def _without_masks(x: XLATensor, indices: Any) -> list[Any]:
    """The indices with every mask replaced by the positions that it selects."""
    found: list[Any] = []
    for index in indices:
        if not _is_mask(index):
            found.append(index)
            continue
        dims = range(len(found), len(found) + index.dim())
        for dim, size in zip(dims, index.shape, strict=True):
            if dim >= x.dim() or x.shape[dim] != size:
                raise IndexError(
                    f"The shape of the mask {list(index.shape)} at index {dim - len(found)} does not match "
                    f"the shape of the indexed tensor {list(x.shape)} at index {dim}"
                )
        positions = aten.nonzero.default(index if isinstance(index, XLATensor) else _to(index, x))
        found += [aten.select.int(positions, 1, column) for column in range(index.dim())]
    return found


def _to(index: torch.Tensor, x: XLATensor) -> XLATensor:
    return transfer.to_device(index, x.spec.device)


@dispatch.handler("aten::index.Tensor")
def _index(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """`x[mask]`, and the indexing that needs no data."""
    x, indices = args
    if any(map(_is_mask, indices)):
        if dispatch.current_trace() is not None:
            raise NotImplementedError(errors.data_dependent(func))
        args = (x, _without_masks(x, indices))
    return dispatch.record(dispatch.registry.table[func], args, kwargs)


@dispatch.handler("aten::index_put")
def _index_put(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """`x[mask] = values`: one value is a `where`, several are placed one by one."""
    x, indices, values, *accumulate = args
    masks = [index for index in indices if _is_mask(index)]
    if masks and dispatch.current_trace() is None and (values.numel() != 1 or len(indices) - indices.count(None) > 1):
        args = (x, _without_masks(x, indices), values, *accumulate)
    return dispatch.record(dispatch.registry.table[func], args, kwargs)


@dispatch.handler("aten::masked_select")
def _masked_select(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The elements of `x` where `mask` is true, both broadcast."""
    x, mask = args
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    return aten.index.Tensor(aten.expand_copy.default(x, shape), [aten.expand_copy.default(mask, shape)])


@dispatch.handler("aten::allclose")
def _allclose(func: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    """A read, like `aten::equal`."""
    x, y, *tolerances = args
    return torch.allclose(transfer.to_host(x), transfer.to_host(y), *tolerances, **kwargs)
