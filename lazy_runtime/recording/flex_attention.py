"""`torch.nn.attention.flex_attention` on xla: torch's own composition of it, which has all scores in memory.

Torch refuses devices that it does not know, and has the operator for those that it does. XLA fuses what a user's
functions compute of the scores and of the mask.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..compat import tracing
from ..compat.torch import DispatchKey

#: Torch's higher-order operator, and its kernel for the CPU.
operator: Any = None
sdpa_dense: Any = None

if all(row.holds() for row in tracing.FLEX_ATTENTION):
    from ..compat.tracing import flex_attention as operator
    from ..compat.tracing import sdpa_dense


def is_possible() -> bool:
    """Whether this version of torch has what is exchanged and called."""
    return operator is not None


@functools.cache
def register() -> None:
    """Has torch take xla tensors, and gives its operator a rule for them. Idempotent."""
    if is_possible():
        operator.py_impl(DispatchKey.AutogradXLA)(composed)
        tracing.validate_flex_device.set(_validating(tracing.validate_flex_device.get()))


def composed(*args: Any) -> Any:
    """The higher-order operator in others, which autograd and graphs take as they are."""
    return sdpa_dense(*args)


def _validating(original: Callable[..., None]) -> Callable[..., None]:
    """Torch's check of devices, which lets xla pass. Dynamo traces it."""

    @functools.wraps(original)
    def validate(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != "xla":
            original(query, key, value)

    return validate
