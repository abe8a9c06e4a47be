"""CPU tensors as numpy arrays and back, of dtypes that numpy has from ml_dtypes too."""

from __future__ import annotations

import numpy as np
import torch

from ..ir import dtypes
from .xla_tensor import make_resizable

# numpy knows these only through ml_dtypes, which torch does not read: they cross as integers of their size
_CARRIERS = {1: torch.uint8, 2: torch.int16}


def from_numpy(host: np.ndarray) -> torch.Tensor:
    """A fresh, contiguous CPU tensor with the data of a numpy array, whose dtype may be one of ml_dtypes'."""
    dtype = dtypes.to_torch(host.dtype)
    if not host.size:  # numpy's copy has strides of 0
        return torch.empty(host.shape, dtype=dtype)
    if dtype in _NOT_NUMPY:
        host = host.view(dtypes.to_numpy(_CARRIERS[dtype.itemsize]))
    tensor = torch.from_numpy(host.copy())  # the array itself is immutable and maybe shared with XLA
    make_resizable((tensor,))
    return tensor.view(dtype) if dtype in _NOT_NUMPY else tensor


_NOT_NUMPY = frozenset(
    {torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz}
)


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A numpy array that shares the memory of a CPU tensor."""
    if tensor.dtype in _NOT_NUMPY:
        return tensor.view(_CARRIERS[tensor.dtype.itemsize]).numpy().view(dtypes.to_numpy(tensor.dtype))
    return tensor.numpy()
