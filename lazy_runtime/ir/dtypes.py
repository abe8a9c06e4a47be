"""Torch dtypes and their jax counterparts.

Torch's 64-bit types stay 64-bit: everything that traces or transfers runs under `jax.enable_x64` (see `x64`), never
under jax's global flag, which belongs to the user.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..common import environment
from . import lowering_context

_TORCH_TO_JAX: dict[torch.dtype, Any] = {
    torch.bool: jnp.bool_,
    torch.uint8: jnp.uint8,
    torch.uint16: jnp.uint16,
    torch.uint32: jnp.uint32,
    torch.uint64: jnp.uint64,
    torch.int8: jnp.int8,
    torch.int16: jnp.int16,
    torch.int32: jnp.int32,
    torch.int64: jnp.int64,
    torch.float16: jnp.float16,
    torch.bfloat16: jnp.bfloat16,
    torch.float32: jnp.float32,
    torch.float64: jnp.float64,
    torch.complex64: jnp.complex64,
    torch.complex128: jnp.complex128,
    torch.float8_e4m3fn: jnp.float8_e4m3fn,
    torch.float8_e5m2: jnp.float8_e5m2,
    torch.float8_e4m3fnuz: jnp.float8_e4m3fnuz,
    torch.float8_e5m2fnuz: jnp.float8_e5m2fnuz,
}
_TO_NUMPY = {torch_dtype: np.dtype(jax_dtype) for torch_dtype, jax_dtype in _TORCH_TO_JAX.items()}
_TO_TORCH = {numpy_dtype: torch_dtype for torch_dtype, numpy_dtype in _TO_NUMPY.items()}

#: Torch's dtypes of integers that stand for floats, and carry a scale.
QUANTIZED = frozenset({torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4})

# TPUs emulate float64 but have no complex128 at all (XLA's own limit, https://openxla.org/xla/operation_semantics).
_PLATFORM_LACKS: dict[str, frozenset[torch.dtype]] = {"tpu": frozenset({torch.complex128})}


def x64():
    """The context in which 64-bit types are kept: stand it around tracing, transfers and every jax call that is not
    ahead-of-time compiled. It is thread-local, unlike `jax_enable_x64`.
    """
    return jax.enable_x64(True)


@functools.cache
def narrowed() -> dict[torch.dtype, np.dtype]:
    """torch dtype → what xla devices store in its place (`XLA_USE_BF16` and its like); usually empty.

    The environment decides when the first tensor comes to a device, so that a program may set it after it has chosen
    one.
    """
    found: dict[torch.dtype, np.dtype] = {}
    if environment.value("XLA_USE_BF16") or environment.value("XLA_DOWNCAST_BF16"):
        found[torch.float32] = np.dtype(jnp.bfloat16)
    if environment.value("XLA_DOWNCAST_BF16"):
        found[torch.float64] = np.dtype(np.float32)
    if environment.value("XLA_USE_BF16"):
        found[torch.float64] = np.dtype(jnp.bfloat16)
    if environment.value("XLA_USE_32BIT_LONG"):
        found[torch.int64] = np.dtype(np.int32)
        found[torch.uint64] = np.dtype(np.uint32)
    return found


def stored(dtype: torch.dtype) -> np.dtype:
    """What xla devices store for a torch dtype: see `to_numpy`."""
    return narrowed().get(dtype) or to_numpy(dtype)


def to_numpy(dtype: torch.dtype) -> np.dtype:
    """The numpy (and jax) dtype of a torch dtype; while a program for an xla device is lowered, the one that it stores.

    Raises:
        TypeError: the dtype (quantized, sub-byte) does not exist in XLA.
    """
    if lowering_context.current().narrows and dtype in narrowed():
        return narrowed()[dtype]
    try:
        return _TO_NUMPY[dtype]
    except KeyError:
        raise TypeError(
            f"{dtype} has no counterpart in XLA: convert the tensor to one of "
            f"{', '.join(str(d).removeprefix('torch.') for d in _TO_NUMPY)} before moving it to an xla device"
        ) from None


def to_torch(dtype: Any) -> torch.dtype:
    """The torch dtype of a numpy or jax dtype."""
    return _TO_TORCH[np.dtype(dtype)]


def check_supported(dtype: torch.dtype, platform: str) -> None:
    """Raises TypeError if tensors of `dtype` cannot live on `platform` ("cpu", "gpu", "tpu")."""
    to_numpy(dtype)
    if dtype in _PLATFORM_LACKS.get(platform, ()):
        raise TypeError(f"{dtype} is not supported on {platform.upper()} devices: XLA has no such type there")
