"""What tensors hold that nobody has given a value: zeros, since XLA has no uninitialised memory; or torch's loud values
under deterministic algorithms.

Formula: `at::native::fill_empty_deterministic_` of torch (NaN, or the largest integer).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import deterministic

from ..ops import registry
from ..recording import dispatch
from ..tensor.xla_tensor import XLATensor, make

_are_deterministic = torch.are_deterministic_algorithms_enabled
_FULL_LIKE = torch.ops.aten.full_like.default


def value(dtype: torch.dtype) -> float | int | bool:
    """What an element of a new tensor is."""
    if not (_are_deterministic() and deterministic.fill_uninitialized_memory):  # type: ignore[attr-defined]
        return 0
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return True if dtype is torch.bool else torch.iinfo(dtype).max


@dispatch.handler(
    "aten::empty.memory_format", "aten::empty_like", "aten::empty_permuted", "aten::empty_strided",
    "aten::new_empty", "aten::new_empty_strided",
)  # fmt: skip
def _empty(func: Any, args: tuple, kwargs: dict[str, Any]) -> XLATensor:
    made = dispatch.record(registry.table[func], args, kwargs)
    element = value(made.spec.dtype)
    if not element:
        return made
    return make(dispatch.record(registry.table[_FULL_LIKE], (made, element), {}).handle, made.spec)
