"""Tensors without data, of which a program is recorded that is not to be run."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ....ir.graph import Handle, Value
from ....ir.spec import TensorSpec
from ....platform import xla_devices
from ....tensor import xla_tensor
from .shapes import from_torch_type


def create_placeholder_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of these sizes on the current device that has no buffer: to record a program and look at its HLO.

    Reading it, or running a program that reads it, raises a RuntimeError.

    Raises:
        TypeError: XLA has no such dtype.
    """
    from_torch_type(dtype)
    spec = TensorSpec.of(xla_devices.get(), dtype, tuple(shape))
    return xla_tensor.to_functional(xla_tensor.make(Handle(Value(None, 0)), spec))


def is_placeholder(tensor: torch.Tensor) -> bool:
    """Whether a tensor has neither a buffer nor a pending program that gives it one: a placeholder, or a tensor whose
    buffer was donated.
    """
    value = xla_tensor.unwrap(tensor).handle.value
    return value.node is None and (value.array is None or value.array.is_deleted())
