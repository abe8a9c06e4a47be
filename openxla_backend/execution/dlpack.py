"""One memory, two frameworks: torch tensors as jax arrays and back, on the CPU and on CUDA.

jax's public functions cost some 20 µs of Python per tensor, six times what the calls below them do; torch's
`from_dlpack` costs 4 µs. A training step passes hundreds of tensors, so on the CPU the calls below are used where they
are as in jaxlib 0.10, and the public ones otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import torch
from jax.core import ShapedArray

from lazy_runtime.compat.torch import tensor_data_ptr
from lazy_runtime.ir import dtypes
from lazy_runtime.tensor import host_arrays

ALIGNMENT = 64  # bytes; XLA copies a buffer that starts elsewhere
_DLPACK_CPU = 1

#: `Tensor.data_ptr` of tensors that have memory (`dispatcher/addresses.py` stands in for it, which takes longer).
address_of: Callable[[torch.Tensor], int] = tensor_data_ptr


def import_tensor(tensor: torch.Tensor) -> jax.Array:
    """A jax array over the tensor's memory; over a copy of it where that is strided, not aligned or lazily conjugated.

    Call it under `dtypes.x64()`.
    """
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if address_of(tensor) % ALIGNMENT:
        tensor = tensor.detach().clone()
    if 1 in tensor.shape:  # whose stride may be anything; XLA wants it dense
        tensor = tensor.detach().view(-1).view(tensor.shape)
    return importer(tensor.device.type)(tensor)


@functools.cache
def importer(device_type: str) -> Callable[[torch.Tensor], jax.Array]:
    """The cheapest way to see an aligned and contiguous tensor of this device type as a jax array."""
    if device_type != "cpu":
        return lambda tensor: jax.dlpack.from_dlpack(tensor.detach())
    # Through numpy, nearly as cheap as DLPack: XLA's threads let go of what they have read when they are done, and a
    # tensor in a DLPack capsule then takes the GIL, which kills a process that is about to end ("terminate called
    # without an active exception"). What jaxlib has from numpy it gives back in one of Python's own threads.
    device = jax.local_devices(backend="cpu")[0]
    sharding = jax.sharding.SingleDeviceSharding(device)

    def public(tensor: torch.Tensor) -> jax.Array:
        return jax.device_put(host_arrays.to_numpy(tensor.detach()), sharding, may_alias=True)

    try:
        from lazy_runtime.compat.jaxlib import batched_device_put

        devices = [device]

        @functools.lru_cache(4096)
        def described(shape: torch.Size, dtype: torch.dtype) -> ShapedArray:
            return ShapedArray(tuple(shape), dtypes.to_numpy(dtype))

        def direct(tensor: torch.Tensor) -> jax.Array:
            host = host_arrays.to_numpy(tensor.detach() if tensor.requires_grad else tensor)
            return batched_device_put(described(tensor.shape, tensor.dtype), sharding, (host,), devices, True)

        probe = torch.zeros(2, dtype=torch.float64)
        with dtypes.x64():  # else jaxlib converts it, and that is a copy
            return direct if direct(probe).unsafe_buffer_pointer() == probe.data_ptr() else public
    except (ImportError, AttributeError, TypeError):  # another jaxlib
        return public


@functools.cache
def exporter(platform: str) -> Callable[[jax.Array], torch.Tensor]:
    """The cheapest way to see an array as a tensor. Nobody else may use the array: the tensor can be written to."""
    if platform != "cpu":
        return torch.from_dlpack
    try:
        from lazy_runtime.compat.jaxlib import buffer_to_dlpack_managed_tensor
        from lazy_runtime.compat.torch import from_dlpack

        def direct(array: jax.Array) -> torch.Tensor:
            return from_dlpack(buffer_to_dlpack_managed_tensor(array))

        with dtypes.x64():
            probe = importer("cpu")(torch.zeros(2))
        return direct if direct(probe).data_ptr() == probe.unsafe_buffer_pointer() else torch.from_dlpack
    except (ImportError, AttributeError, TypeError):
        return torch.from_dlpack
