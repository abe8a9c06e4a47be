"""Tensors as jax arrays, and the other way round."""

from __future__ import annotations

import torch

from ..compat.jax_import import jax
from ..execution import shared_buffers
from ..ir import dtypes
from ..platform import xla_devices
from ..tensor import host_arrays, xla_tensor


def asarray(tensor: torch.Tensor) -> jax.Array:
    """The tensor's values as a jax array on its device; no gradient goes through it.

    An xla tensor's array is its buffer, without a copy: what is pending is executed. Later writes to the tensor leave
    the array as it is, since they make a new buffer, and no program takes this one for its results. The memory of a
    tensor on the CPU is torch's to write to, so it is copied.

    Args:
        tensor: dense; of a sharded tensor the array has the same shards.

    Returns:
        an array of the tensor's shape and dtype, 64-bit types included.

    Raises:
        TypeError: the tensor is sparse, or jax has no such dtype.
    """
    dtypes.to_numpy(tensor.dtype)  # or it says what is possible
    if tensor.layout is not torch.strided:
        raise TypeError(f"jax has no arrays of {tensor.layout}: convert the tensor by to_dense() first")
    if tensor.device.type != "xla":
        values = host_arrays.to_numpy(tensor.detach().cpu().contiguous())
        with dtypes.x64():
            return jax.device_put(values.copy(), jax.devices("cpu")[0])
    return shared_buffers.array_of(xla_tensor.unwrap(tensor.detach()))


def from_array(array: jax.Array) -> torch.Tensor:
    """An xla tensor over a jax array's buffer, without a copy, on the xla device that has it.

    jax may go on with the array: writes to the tensor make a new buffer. Where jax donates it, the tensor is gone too.

    Args:
        array: on one device of `lazy_runtime.devices()`.

    Returns:
        a tensor of the array's shape and dtype; it requires no gradient.

    Raises:
        TypeError: it is no jax array, is being traced, or torch has no such dtype.
        ValueError: it is spread over several devices, or on none of this process's xla devices.
    """
    if not isinstance(array, jax.Array):
        raise TypeError(f"from_array takes a jax array, not {type(array).__name__}: jax.numpy.asarray makes one")
    if jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key):
        raise TypeError("torch has no typed random keys: hand over jax.random.key_data(key), which are numbers")
    try:
        dtypes.to_torch(array.dtype)
    except KeyError:
        raise TypeError(f"torch has no dtype like {array.dtype}: convert the array first") from None
    try:
        where = array.devices()
    except jax.errors.ConcretizationTypeError:
        raise TypeError(
            f"from_array takes an array that has values, not {array}, which jax traces: hand the function to "
            "lazy_runtime.jax.call instead"
        ) from None
    device = next((each for each in xla_devices.devices() if {each.jax_device} == where), None)
    if device is None:
        names = ", ".join(sorted(map(str, where)))
        raise ValueError(
            f"the array is on {names}, and the xla devices of this process are {_names()}: move it by jax.device_put"
        )
    return shared_buffers.tensor_over(array, device)


def _names() -> str:
    return ", ".join(str(each.jax_device) for each in xla_devices.devices())
