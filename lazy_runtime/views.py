"""Views that need more than the tensor they are taken of, and writes that no view can take."""

from __future__ import annotations

from typing import Any

import torch

from . import dispatch
from .spec import TensorSpec, storage_size
from .tensor import XLATensor

aten = torch.ops.aten

# torch's words (aten/src/ATen/MemoryOverlap.cpp)
OVERLAP = (
    "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
    "Please clone() the tensor before performing the operation."
)


def as_strided(tensor: torch.Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> torch.Tensor:
    """`aten::as_strided` for autograd's key: where it reaches beyond the tensor's own elements it acts on the tensor
    that this one is a view of, since an xla view holds no more than its elements."""
    base = tensor._base
    if base is not None and not _covers(tensor, size, stride, storage_offset):
        storage_offset = int(tensor.storage_offset()) if storage_offset is None else storage_offset
        tensor = base
    # straight to autograd's own kernel, whose place for xla this function has taken
    return aten.as_strided.default._op_dk(torch._C.DispatchKey.Autograd, tensor, size, stride, storage_offset)


def _covers(tensor: torch.Tensor | TensorSpec, size: Any, stride: Any, storage_offset: int | None) -> bool:
    """Whether a dense tensor holds every element that the strided view would show."""
    if isinstance(tensor, TensorSpec):
        start, dense, count = tensor.offset, tensor.is_contiguous, tensor.numel
    else:
        start, dense, count = tensor.storage_offset(), tensor.is_contiguous(), tensor.numel()
    first = 0 if storage_offset is None else storage_offset - start
    return dense and first >= 0 and first + storage_size(tuple(size), tuple(stride)) <= count


@dispatch.handler("aten::as_strided", "aten::as_strided_copy")
def _as_strided(func: Any, args: tuple, kwargs: dict[str, Any]) -> XLATensor:
    """The operator, where the tensor holds all elements that it shows."""
    tensor, size, stride, *rest = args
    storage_offset = rest[0] if rest else kwargs.get("storage_offset")
    spec = tensor.spec
    if not _covers(spec, size, stride, storage_offset):
        first = spec.offset if storage_offset is None else storage_offset
        wanted = _positions(size, stride, first)
        if not wanted <= _positions(spec.shape, spec.stride, spec.offset):
            raise RuntimeError(
                f"as_strided(size={tuple(size)}, stride={tuple(stride)}, storage_offset={first}) reaches elements that "
                f"the xla tensor {spec} does not hold: call it on the tensor that this one is a view of"
            )
    return dispatch.record(dispatch.registry.table[func], args, kwargs)


def _positions(size: Any, stride: Any, first: int) -> set[int]:
    positions = {first}
    for count, step in zip(size, stride, strict=True):
        positions = {position + i * step for position in positions for i in range(count)}
    return positions


@dispatch.handler("aten::_propagate_xla_data")
def _propagate_xla_data(func: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Arrives after every in-place operator with the inner tensors before and after. Functionalization has done the
    work, but through an expanded tensor it has summed the values written to one element.

    Raises:
        RuntimeError: torch's own for such a write.
    """
    before = args[0]
    spec = before.spec
    if 0 in spec.stride and any(step == 0 and size > 1 for step, size in zip(spec.stride, spec.shape, strict=True)):
        raise RuntimeError(OVERLAP)


def register(library: torch.library.Library) -> None:
    """Registers what works only once the devices are up."""
    library.impl("as_strided", as_strided, "AutogradXLA")
