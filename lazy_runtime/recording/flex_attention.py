"""`torch.nn.attention.flex_attention` on xla: torch's own composition of it, which has all scores in memory.

Torch refuses devices that it does not know, and has the operator for those that it does. XLA fuses what a user's
functions compute of the scores and of the mask.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch

# modules: their packages have functions and operators of that name
_operators: Any = importlib.import_module("torch._higher_order_ops.flex_attention")
_functions: Any = importlib.import_module("torch.nn.attention.flex_attention")

#: Torch's higher-order operator.
operator: Any = getattr(_operators, "flex_attention", None)


def is_possible() -> bool:
    """Whether this version of torch has what is exchanged and called."""
    owned = (_functions, "_validate_device"), (_operators, "flex_attention"), (_operators, "sdpa_dense")
    return all(hasattr(owner, name) for owner, name in owned)


@functools.cache
def register() -> None:
    """Has torch take xla tensors, and gives its operator a rule for them. Idempotent."""
    if is_possible():
        operator.py_impl(torch._C.DispatchKey.AutogradXLA)(composed)
        _functions._validate_device = _validating(_functions._validate_device)


def composed(*args: Any) -> Any:
    """The higher-order operator in others, which autograd and graphs take as they are."""
    return _operators.sdpa_dense(*args)


def _validating(original: Callable[..., None]) -> Callable[..., None]:
    """Torch's check of devices, which lets xla pass. Dynamo traces it."""

    @functools.wraps(original)
    def validate(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != "xla":
            original(query, key, value)

    return validate
