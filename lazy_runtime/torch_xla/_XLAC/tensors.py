"""What `_XLAC` says of single tensors."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...compilation import donors
from ...execution import execute, transfer
from ...ir.graph import Handle
from ...platform import hardware, xla_devices
from ...recording import views
from ...tensor import xla_tensor
from ..core.xla_builder.placeholders import create_placeholder_tensor
from ..core.xla_builder.placeholders import is_placeholder as _is_placecholder
from ..core.xla_builder.shapes import Shape, from_torch_type, to_torch_type

__all__ = [
    "_check_device_tensor_need_materialization",
    "_check_tensor_need_materialization",
    "_get_base_seed_as_tensor",
    "_get_buffer_donation",
    "_get_seed_info_id",
    "_get_tensors_handle",
    "_get_xla_tensor_debug_info",
    "_get_xla_tensor_dimension_size",
    "_get_xla_tensor_shape_type",
    "_is_placecholder",
    "_on_ready_callback",
    "_replace_xla_tensor",
    "_set_buffer_donation",
    "_set_xla_custom_op_name_prefix",
    "_unique_id_for_ir_and_data",
    "_unsafe_buffer_pointer",
    "_xla_create_placeholder_tensor",
    "_xla_get_device_hw_type",
    "_xla_get_tensor_id",
    "_xla_get_tensor_view_alias_id",
    "_xla_tensors_from_aten",
]

#: The numbers of the tensors that somebody has asked for, by what they had as their values then.
ids: weakref.WeakKeyDictionary[Handle, int] = weakref.WeakKeyDictionary()


def _handle(tensor: torch.Tensor) -> Handle:
    return xla_tensor.unwrap(tensor.detach()).handle


def _xla_get_tensor_id(tensor: torch.Tensor) -> int:
    """A number of the tensor's memory: the same for tensors that share memory, and for as long as it lives.

    Raises:
        RuntimeError: the tensor is not on xla.
    """
    xla_devices.get(tensor.device)
    # a tensor that was made in inference mode is a value, and no view of another
    number = tensor.untyped_storage().data_ptr() if views.has_memory(tensor) else id(tensor)
    ids[_handle(tensor)] = number
    return number


def _xla_get_tensor_view_alias_id(tensor: torch.Tensor) -> int:
    """A number that tensors have in common which are views of one memory."""
    return _xla_get_tensor_id(tensor)


def _unique_id_for_ir_and_data(tensor: torch.Tensor) -> str:
    """Text that tensors have in common whose values are one: one result of one operator, or one buffer."""
    return str(id(_handle(tensor).value))


def _get_tensors_handle(tensors: Sequence[torch.Tensor]) -> list[int]:
    """A number for each tensor's value, pending or not.

    Raises:
        RuntimeError: a tensor's buffer was donated.
    """
    found = []
    for tensor in tensors:
        value = _handle(tensor).value
        if value.array is not None and value.array.is_deleted():
            raise RuntimeError("the tensor's buffer was donated to a program and is deleted: it has no handle")
        found.append(id(value))
    return found


def _unsafe_buffer_pointer(tensor: torch.Tensor) -> int:
    """The address of a tensor's buffer on its device, once it is computed. The buffer is pinned, so that no program
    takes its memory while the tensor lives.

    Raises:
        RuntimeError: the tensor has no buffer of its own: it is pending, a placeholder, or lies on several devices.
    """
    inner = xla_tensor.unwrap(tensor.detach())
    value = inner.handle.value
    if value.array is None or value.array.is_deleted():
        raise RuntimeError("the tensor has no buffer: call torch_xla.sync() before, if it is no placeholder")
    if inner.spec.device.grid is not None:
        raise RuntimeError("the tensor has a buffer on each device: take those of its shards")
    value.pinned = True
    value.array.block_until_ready()
    return value.array.unsafe_buffer_pointer()


def _check_tensor_need_materialization(tensors: Sequence[torch.Tensor]) -> list[bool]:
    """For each tensor, whether its value waits for a program; those that are not on xla do not."""
    return [each.device.type == "xla" and _handle(each).value.node is not None for each in tensors]


def _check_device_tensor_need_materialization(device: str) -> list[bool]:
    """True for each value on a device that somebody can read and that waits for a program."""
    found = xla_devices.get(device or None)
    with found.lock:
        return [True for node in found.pending for owner in node.outputs if owner is not None and owner() is not None]


def _set_buffer_donation(tensor: torch.Tensor, should_donate: bool) -> bool:
    """Gives the tensor's buffer to the next program that reads it and has a result of its sizes and dtype. The tensor
    has no value afterwards, unless that result is written to it.

    Returns:
        whether the tensor has a buffer; without one nothing is noted.
    """
    handle = _handle(tensor)
    if handle.value.node is not None or handle.value.array is None:
        return False
    from ...common import metrics

    metrics.count("XlaSetBufferDonation")
    donors.give(handle, bool(should_donate))
    return True


def _get_buffer_donation(tensor: torch.Tensor) -> bool:
    """Whether the tensor's buffer is given away; it stays so when a program has taken it."""
    return donors.has_given(_handle(tensor))


def _get_xla_tensor_debug_info(tensor: torch.Tensor) -> str:
    """What is known of a tensor, for people."""
    if tensor.device.type != "xla":
        return "Not a XLATensor\n"
    from ...debug import graphs
    from ...tensor import sharding

    inner = xla_tensor.unwrap(tensor.detach())
    value, spec = inner.handle.value, inner.spec
    shape = f"{from_torch_type(spec.dtype)}[{','.join(map(str, spec.shape))}]"
    lines = [
        f"TensorID: {_xla_get_tensor_id(tensor)}",
        f"AliasID: {_xla_get_tensor_view_alias_id(tensor)}",
        f"Device: {hardware.kind(spec.device)}:{spec.device.jax_device.id}",
        f"XLA Shape: {shape}",
        f"ShardingSpec: {sharding.text(inner) or 'None'}",
    ]
    if value.node is not None:
        lines += [f"IR: {graphs.signature(value.node)}", "XLAData: None"]
    elif value.array is None:
        lines += [
            "IR: None",
            f"XLAData:\n  Data Device: {spec.torch_device}\n  Data Shape: {shape}\n  Data Handle: None",
        ]
    else:
        handle = "Deleted" if value.array.is_deleted() else str(id(value))
        lines += [
            "IR: None",
            f"XLAData:\n  Data Device: {spec.torch_device}\n  Data Shape: {shape}\n  Data Handle: {handle}",
        ]
    return "XLATensor {\n" + "\n".join(lines) + "\nTensor on host: None\n}\n"


def _get_xla_tensor_shape_type(tensor: torch.Tensor) -> str:
    """The name of the element type: `f32`."""
    return from_torch_type(xla_tensor.unwrap(tensor.detach()).spec.dtype)


def _get_xla_tensor_dimension_size(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """The size of a dimension as an int32 scalar on the tensor's device."""
    return torch.tensor(tensor.shape[dim], dtype=torch.int32, device=tensor.device)


def _xla_get_device_hw_type(tensor: torch.Tensor) -> str:
    """The kind of the tensor's device: `CPU`, `CUDA`, `TPU`."""
    return hardware.kind(xla_devices.get(tensor.device))


def _xla_tensors_from_aten(
    tensors: Sequence[torch.Tensor], devices: Sequence[str], shardings: Sequence[Any] | None = None
) -> list[torch.Tensor]:
    """CPU tensors on xla devices, one for each.

    Args:
        shardings: how each is to lie: None, or a `distributed.spmd.ShardingSpec`.
    """
    from ..core import arena

    given = shardings or [None] * len(tensors)
    return [
        arena.to_device(each, torch.device(device), sharding)
        for each, device, sharding in zip(tensors, devices, given, strict=True)
    ]


def _replace_xla_tensor(tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Gives a tensor the memory, sizes and values of another one, which it shares from now on.

    Returns:
        the tensor.
    """
    with torch.no_grad():
        tensor.data = source
    return tensor


def _set_xla_custom_op_name_prefix(tensor: torch.Tensor, op_name_prefix: str, max_call_stack_depth: int = 0) -> bool:
    """Names the operator that a tensor waits for, in graphs and, with `XLA_IR_DEBUG`, in its HLO.

    Args:
        op_name_prefix: stands before the operator's name, as the part of the program that it belongs to.
        max_call_stack_depth: how many of the user's frames it keeps; 0 for those that it has.

    Returns:
        whether the tensor waits for an operator.
    """
    node = _handle(tensor).value.node
    if node is None:
        return False
    node.scope = op_name_prefix
    frames = getattr(node, "stack", [])
    node.stack = frames[:max_call_stack_depth] if max_call_stack_depth else frames
    return True


def _on_ready_callback(tensor: torch.Tensor, callback: Callable[[], Any]) -> None:
    """Calls `callback()` on a thread when the tensor has been computed. What is pending is executed now.

    Raises:
        RuntimeError: the tensor has no value: it is a placeholder.
    """
    inner = xla_tensor.unwrap(tensor.detach())
    array = execute.array_of(inner.handle.value, inner.spec.device)

    def wait() -> None:
        array.block_until_ready()
        callback()

    threading.Thread(target=wait, name="xla ready callback").start()


def _xla_create_placeholder_tensor(shape: Any) -> torch.Tensor:
    """See `xla_builder.create_placeholder_tensor`.

    Args:
        shape: as `xla_builder.Shape` takes it.
    """
    found = Shape(shape)
    return create_placeholder_tensor(found.sizes, to_torch_type(found.dtype))


def _get_seed_info_id() -> int:
    """The number that stands for the seed among a graph's inputs. Seeds are no tensors here, so no input has it."""
    return -127389


def _get_base_seed_as_tensor(device: str = "") -> torch.Tensor:
    """The state of a device's random numbers (`xm.get_rng_state`) as an int64 scalar on it."""
    found = xla_devices.get(device or None)
    state = torch.tensor(found.random.detach(), dtype=torch.int64, device="cpu")
    return xla_tensor.to_functional(transfer.to_device(state, found))
