"""Buffers that others hold beside tensors, as jax and other frameworks do: no program takes them for its results."""

from __future__ import annotations

from typing import Any

import torch

from ..ir import dtypes
from ..ir.spec import TensorSpec
from ..platform.xla_devices import Device
from ..tensor import xla_tensor
from ..tensor.xla_tensor import XLATensor
from . import execute


def array_of(tensor: XLATensor) -> Any:
    """The tensor's buffer, a jax array, after executing what is pending."""
    value = tensor.handle.value
    array = execute.array_of(value, tensor.spec.device)
    value.pinned = True
    return array


def tensor_over(array: Any, device: Device) -> torch.Tensor:
    """A tensor over a jax array of the device.

    Raises:
        KeyError: torch has no such dtype.
    """
    made = xla_tensor.from_array(array, TensorSpec.of(device, dtypes.to_torch(array.dtype), tuple(array.shape)))
    made.handle.value.pinned = True
    return xla_tensor.to_functional(made)
