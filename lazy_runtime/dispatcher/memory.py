"""`set_` and `resize_`: a tensor that exchanges the memory it shows, or how much of it.

Torch's functionalization can do both for a program that it traces, where nobody looks back: its `set_` forbids every
later write to the memory that was left, and its `resize_` one to a view. Here the tensor gets the insides of another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..compat.torch import DispatchKey, kernel_call_of, storage_address_of, storage_use_count
from ..ir.spec import contiguous_strides
from ..recording import views
from ..tensor import proxy_tracing

aten = torch.ops.aten


def set_tensor(tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """`aten::set_.source_Tensor`: from now on `tensor` is an alias of `source`."""
    left = tensor.data
    tensor.data = torch.empty_like(left)  # the memory that torch's own kernel may close for writes
    try:
        source = left if source is tensor else source
        return kernel_call_of(aten.set_.source_Tensor)(DispatchKey.Autograd, tensor, source)
    except Exception:
        tensor.data = left
        raise


def set_tensor_offset(
    tensor: torch.Tensor, source: torch.Tensor, offset: int, size: Any, stride: Any = ()
) -> torch.Tensor:
    """`aten::set_.source_Tensor_storage_offset`: `tensor` shows a part of the memory of `source`."""
    if not source.is_contiguous():
        raise RuntimeError("passed in tensor to be used as storage must be contiguous")
    start, stride = int(source.storage_offset()) + offset, strides_of(size, stride)
    return set_tensor(tensor, torch.ops.lazy_runtime.of_root(source, tensor.dtype, size, stride, start))


def strides_of(size: Any, stride: Any) -> tuple[int, ...]:
    """The strides that `set_` was given, or those of a contiguous tensor where it was given none.

    Raises:
        RuntimeError: torch's own, for as many as there are sizes.
    """
    size, stride = tuple(size), tuple(stride)
    if stride and len(stride) != len(size):
        raise RuntimeError(f"unequal size length ({len(size)}) and stride length ({len(stride)})")
    return stride or contiguous_strides(size)


def set_empty(tensor: torch.Tensor) -> torch.Tensor:
    """`aten::set_`: `tensor` lets go of its memory."""
    return set_tensor(tensor, torch.empty(0, dtype=tensor.dtype, device=tensor.device))


def resize_(tensor: torch.Tensor, size: Any, *, memory_format: torch.memory_format | None = None) -> torch.Tensor:
    """`aten::resize_`: other sizes over the same memory, which grows where it does not suffice, by zeros (see
    `uninitialized`).

    Raises:
        RuntimeError: the tensor requires a gradient.
        NotImplementedError: the memory would have to grow, and other tensors share it.
    """
    if not views.has_memory(tensor) or proxy_tracing.is_tracing():
        return kernel_call_of(aten.resize_.default)(DispatchKey.Autograd, tensor, size, memory_format=memory_format)
    if tensor.requires_grad:
        raise RuntimeError("cannot resize variables that require grad")
    size = tuple(size)
    if size == tuple(tensor.shape) and memory_format is None:
        return tensor
    before = tensor.shape
    stride, offset = _strides(size, memory_format), int(tensor.storage_offset())
    held = torch.ops.lazy_runtime.memory_size(tensor) // tensor.dtype.itemsize
    needed = offset + torch.Size(size).numel() if 0 not in size else 0
    if needed <= held:
        tensor.data = views.of_root(tensor, size, stride, offset)
    else:
        tensor.data = _grown(tensor, held, needed).as_strided(size, stride, offset)
    if tensor.shape != before and not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)
    return tensor


def _strides(size: tuple[int, ...], memory_format: torch.memory_format | None) -> tuple[int, ...]:
    if memory_format in (None, torch.contiguous_format):
        return contiguous_strides(size)
    return torch.empty(size, device="meta", memory_format=memory_format).stride()


def _grown(tensor: torch.Tensor, held: int, needed: int) -> torch.Tensor:
    """The memory of `tensor` and some more, flat."""
    # the tensor itself and the Python object that asks
    if storage_use_count(storage_address_of(tensor.untyped_storage())) > 2:
        raise NotImplementedError(
            f"resize_ of an xla tensor of {held} elements in memory to {needed} while other tensors share that memory, "
            "which cannot grow under them: resize a clone(), or drop its views and aliases before"
        )
    with torch.no_grad():
        memory = views.of_root(tensor, (held,), (1,), 0)
        return torch.cat([memory, memory.new_empty(needed - held)])


def register(library: torch.library.Library) -> None:
    """Registers what works only once the devices are up."""
    kernels: dict[str, Callable[..., Any]] = {
        "set_.source_Tensor": set_tensor,
        "set_.source_Tensor_storage_offset": set_tensor_offset,
        "set_": set_empty,
        "resize_": resize_,
    }
    for name, kernel in kernels.items():
        library.impl(name, kernel, "AutogradXLA")
