"""One memory, two frameworks: torch tensors as jax arrays and back, on the CPU and on CUDA.

jax's public `from_dlpack` costs 20 µs of Python per tensor, seven times what the call below it does; torch's costs
4 µs. A training step passes hundreds of tensors, so on the CPU the calls below are used where they are as in jaxlib
0.10, and the public ones otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import torch

ALIGNMENT = 64  # bytes; XLA copies a buffer that starts elsewhere
_DLPACK_CPU = 1


def import_tensor(tensor: torch.Tensor) -> jax.Array:
    """A jax array over the tensor's memory; over a copy of it where that is strided, not aligned or lazily conjugated.

    Call it under `dtypes.x64()`.
    """
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if tensor.data_ptr() % ALIGNMENT:
        tensor = tensor.detach().clone()
    if 1 in tensor.shape:  # whose stride may be anything; XLA wants it dense
        tensor = tensor.detach().view(-1).view(tensor.shape)
    return importer(tensor.device.type)(tensor)


@functools.cache
def importer(device_type: str) -> Callable[[torch.Tensor], jax.Array]:
    """The cheapest way to see an aligned and contiguous tensor of this device type as a jax array."""

    def public(tensor: torch.Tensor) -> jax.Array:
        return jax.dlpack.from_dlpack(tensor.detach())

    if device_type != "cpu":
        return public
    try:
        from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]

        to_array, to_capsule = _jax.dlpack_managed_tensor_to_buffer, torch._C._to_dlpack
        device = jax.local_devices(backend="cpu")[0]

        def direct(tensor: torch.Tensor) -> jax.Array:
            return to_array(to_capsule(tensor), device, None, None, _DLPACK_CPU)

        probe = torch.zeros(2, dtype=torch.float64)
        return direct if direct(probe).unsafe_buffer_pointer() == probe.data_ptr() else public
    except (ImportError, AttributeError, TypeError):  # another jaxlib
        return public


@functools.cache
def exporter(platform: str) -> Callable[[jax.Array], torch.Tensor]:
    """The cheapest way to see an array as a tensor. Nobody else may use the array: the tensor can be written to."""
    if platform != "cpu":
        return torch.from_dlpack
    try:
        from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]

        to_capsule: Any = _jax.buffer_to_dlpack_managed_tensor
        from_capsule: Any = torch._C._from_dlpack

        def direct(array: jax.Array) -> torch.Tensor:
            return from_capsule(to_capsule(array))

        probe = importer("cpu")(torch.zeros(2))
        return direct if direct(probe).data_ptr() == probe.unsafe_buffer_pointer() else torch.from_dlpack
    except (ImportError, AttributeError, TypeError):
        return torch.from_dlpack
