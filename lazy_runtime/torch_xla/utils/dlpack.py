"""The memory of xla tensors shared with other frameworks through DLPack.

A buffer that somebody else sees is never given to XLA for the outputs of a step, so it keeps its value. The value of an
xla tensor never changes; a foreign library that writes to shared memory does so at its own risk.
"""

from __future__ import annotations

from typing import Any

import torch

from ...compat.jax_import import jax
from ...execution import shared_buffers
from ...ir import dtypes
from ...platform import xla_devices
from ...processes import multihost_arrays
from ...tensor import xla_tensor as tensor

_DLPACK_CPU, _DLPACK_CUDA, _DLPACK_ROCM = 1, 2, 10
_PLATFORMS = {_DLPACK_CPU: "cpu", _DLPACK_CUDA: "gpu", _DLPACK_ROCM: "gpu"}


def to_dlpack(xla_tensor: torch.Tensor) -> Any:
    """A DLPack capsule over the tensor's buffer, after executing what is pending. It is dense and row-major over the
    tensor's sizes, whatever the tensor's strides.

    Raises:
        TypeError: not an xla tensor.
    """
    inner = tensor.unwrap(xla_tensor.detach())
    array = shared_buffers.array_of(inner)
    if inner.spec.device.grid is not None:  # one of its copies; of what is sharded, one that is made now
        with dtypes.x64():
            array = multihost_arrays.local(array, inner.spec.device.jax_device)
    array.block_until_ready()  # a consumer of the CPU's memory knows no streams
    return array.__dlpack__()


def from_dlpack(ext_data: Any) -> torch.Tensor:
    """An xla tensor over the memory of another framework's tensor: on the xla device that has that memory.

    Memory that XLA cannot use in place is copied: on the CPU what does not start at a multiple of 64 bytes, as views
    with an offset do, and anywhere what is not dense and row-major.

    Args:
        ext_data: an object with `__dlpack__`, or a DLPack capsule.

    Raises:
        RuntimeError: there is no xla device on the memory's device.
    """
    if hasattr(ext_data, "__dlpack_device__"):
        kind, index = ext_data.__dlpack_device__()
        if isinstance(ext_data, torch.Tensor):
            ext_data = ext_data.detach()
            if not ext_data.is_contiguous():
                ext_data = ext_data.contiguous()
    else:  # only who consumes a capsule learns its device: torch knows every one that it has itself
        ext_data = torch.from_dlpack(ext_data)
        kind, index = ext_data.__dlpack_device__()
    device = _device(int(kind), int(index))
    with dtypes.x64():
        array = jax.dlpack.from_dlpack(ext_data)
        if array.devices() != {device.jax_device}:
            array = multihost_arrays.moved(array, device.sharding)
    return shared_buffers.tensor_over(array, device)


def _device(kind: int, index: int) -> xla_devices.Device:
    platform = _PLATFORMS.get(kind)
    found = [each for each in xla_devices.devices() if each.platform == platform]
    if kind == _DLPACK_CPU and found:
        return found[0]  # DLPack knows one CPU
    for each in found:
        if each.jax_device.local_hardware_id == index:
            return each
    where = {_DLPACK_CPU: "the CPU", _DLPACK_CUDA: f"CUDA device {index}", _DLPACK_ROCM: f"ROCm device {index}"}
    raise RuntimeError(
        f"from_dlpack: the data is on {where.get(kind, f'a DLPack device of kind {kind}')} and no xla device of this "
        "process is: move it first"
    )
