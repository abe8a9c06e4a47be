"""Views that reach beyond what their inverse can write back, and what a write leaves of the written tensor's look.

Torch's functionalization keeps one value per memory, the root's, and the chain of view operators that leads from it to
each view; a write through a view goes back up that chain. `as_strided` sees the whole memory and not only the elements
of the tensor that it is called on, and the inverse that torch has of `unfold` forgets what no window shows. So these
views are taken of the root itself: autograd's kernel keeps its books with the tensor that the user named, and the
result then gets the insides of the same view of the root.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

from ..compat.torch import DispatchKey, is_functional_tensor, kernel_call_of
from ..compat.torch import from_functional_tensor as _inner
from ..ir.graph import Handle, Value
from ..ir.spec import TensorSpec, storage_size
from ..tensor.xla_tensor import XLATensor, make
from . import dispatch

aten = torch.ops.aten

# torch's words (aten/src/ATen/MemoryOverlap.cpp)
OVERLAP = (
    "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
    "Please clone() the tensor before performing the operation."
)


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether it is an xla tensor of ours, and no stand-in of Dynamo's."""
    return is_functional_tensor(tensor) and type(_inner(tensor)) is XLATensor


def of_root(tensor: torch.Tensor, size: Any, stride: Any, storage_offset: int) -> torch.Tensor:
    """The memory of `tensor`, seen with these sizes and strides, outside of autograd's books (`native/in_place.cpp`).

    Raises:
        RuntimeError: torch's own, for what lies outside of the memory.
    """
    return torch.ops.lazy_runtime.of_root(tensor, tensor.dtype, size, stride, storage_offset)


# straight to autograd's own kernels, whose place for xla the functions below have taken
def _as_strided_in_autograd(tensor: torch.Tensor, size: Any, stride: Any, storage_offset: int | None) -> torch.Tensor:
    return kernel_call_of(aten.as_strided.default)(DispatchKey.Autograd, tensor, size, stride, storage_offset)


def as_strided(tensor: torch.Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> torch.Tensor:
    """`aten::as_strided` for autograd's key."""
    if not has_memory(tensor) or _covers(tensor, size, stride, storage_offset):
        return _as_strided_in_autograd(tensor, size, stride, storage_offset)
    offset = int(tensor.storage_offset()) if storage_offset is None else storage_offset
    insides = of_root(tensor, size, stride, offset)
    with _placeholder(insides):
        view = _as_strided_in_autograd(tensor, size, stride, storage_offset)
    view.data = insides
    return view


def as_strided_(tensor: torch.Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> torch.Tensor:
    """`aten::as_strided_` for autograd's key."""
    if not has_memory(tensor):
        return kernel_call_of(aten.as_strided_.default)(DispatchKey.Autograd, tensor, size, stride, storage_offset)
    torch.ops.lazy_runtime.check_inplace(tensor)
    offset = int(tensor.storage_offset()) if storage_offset is None else storage_offset
    insides = of_root(tensor, size, stride, offset)
    if not tensor.requires_grad:  # else autograd notes how the tensor has looked
        count = torch.ops.lazy_runtime.memory_size(tensor) // tensor.dtype.itemsize
        tensor.data = of_root(tensor, (count,), (1,), 0)  # torch tries it out on a meta tensor of these sizes
    with _placeholder(insides):
        kernel_call_of(aten.as_strided_.default)(DispatchKey.Autograd, tensor, size, stride, offset)
    tensor.data = insides
    return tensor


class _Thread(threading.local):
    placeholder: TensorSpec | None = None


_thread = _Thread()


@contextlib.contextmanager
def _placeholder(insides: torch.Tensor) -> Iterator[None]:
    """Within, `as_strided` gives a tensor that looks like `insides` and has no value."""
    _thread.placeholder = _inner(insides).spec
    try:
        yield
    finally:
        _thread.placeholder = None


def _covers(tensor: torch.Tensor | TensorSpec, size: Any, stride: Any, storage_offset: int | None) -> bool:
    """Whether a dense tensor holds every element that the strided view would show."""
    if isinstance(tensor, TensorSpec):
        start, dense, count = tensor.offset, tensor.is_contiguous, tensor.numel
    else:
        start, dense, count = tensor.storage_offset(), tensor.is_contiguous(), tensor.numel()
    first = 0 if storage_offset is None else storage_offset - start
    if len(size) != len(stride):  # torch's to refuse
        return False
    return dense and first >= 0 and first + storage_size(tuple(size), tuple(stride)) <= count


@dispatch.handler("aten::as_strided", "aten::as_strided_copy")
def _as_strided(func: Any, args: tuple, kwargs: dict[str, Any]) -> XLATensor:
    """The operator, where the tensor holds all elements that it shows."""
    if _thread.placeholder is not None:
        return make(Handle(Value(None, 0)), _thread.placeholder)
    tensor, size, stride, *rest = args
    storage_offset = rest[0] if rest else kwargs.get("storage_offset")
    spec = tensor.spec
    result = dispatch.record(dispatch.registry.table[func], args, kwargs)  # or torch's error
    if not _covers(spec, size, stride, storage_offset):
        first = spec.offset if storage_offset is None else storage_offset
        wanted = _positions(size, stride, first)
        if not wanted <= _positions(spec.shape, spec.stride, spec.offset):
            raise RuntimeError(
                f"as_strided(size={tuple(size)}, stride={tuple(stride)}, storage_offset={first}) reaches elements that "
                f"the xla tensor {spec} does not hold: call it on the tensor that this one is a view of"
            )
    return result


def _positions(size: Any, stride: Any, first: int) -> set[int]:
    if 0 in size:
        return set()
    positions = {first}
    for count, step in zip(size, stride, strict=True):
        positions = {position + i * step for position in positions for i in range(count)}
    return positions


@dispatch.handler("aten::_propagate_xla_data")
def _propagate_xla_data(func: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Arrives after every operator that writes with the inner tensors before and after, those that the user's tensors
    hold and those behind all their views: what was written to keeps its strides, whatever the operator's result has.

    Raises:
        RuntimeError: torch's own for a write to an expanded tensor, in inference mode (elsewhere `native/in_place.cpp`
            has refused it), where functionalization has summed what was written to one place.
    """
    before, after = args
    spec = before.spec
    if (
        0 in spec.stride
        and spec.numel
        and any(step == 0 and size > 1 for step, size in zip(spec.stride, spec.shape, strict=True))
    ):
        raise RuntimeError(OVERLAP)
    if after.spec is not spec and after.spec.shape == spec.shape:  # of other sizes: `out=` resizes
        after.data = make(after.handle, spec)  # the look that torch sees
        after.spec = spec


def register(library: torch.library.Library) -> None:
    """Registers what works only once the devices are up."""
    library.impl("as_strided", as_strided, "AutogradXLA")
    library.impl("as_strided_", as_strided_, "AutogradXLA")
