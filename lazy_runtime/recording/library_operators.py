"""Operators that other libraries have registered with torch, as torch's own operators that mean the same.

A library hides a loop over values from `torch.compile` in an operator of its own. Called as it is, it would be the
library's Python within the program, with its operands copied there in torch's order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..compat.torch import OpOverload
from ..ops.linalg.grouped_mm import ALIGNMENT

_grouped_mm: Any = torch.ops.aten._grouped_mm.default


def decomposition(func: OpOverload) -> Callable[..., Any] | None:
    """What an operator of a library is made of; None of any other. It may return NotImplemented."""
    return _FUNCTIONS.get(func.name())


def _can_be_grouped(*tensors: torch.Tensor) -> bool:
    """Whether torch's grouped product takes them: rows or columns lie dense, and begin where it wants them."""
    return all(
        x.is_floating_point()
        and 1 in x.stride()[-2:]
        and all(stride == 1 or stride * x.itemsize % ALIGNMENT == 0 for stride in x.stride())
        for x in tensors
    )


def _experts(x: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> Any:
    """The rows of each expert times its matrix, in mixtures of experts of transformers (`integrations/moe.py`).

    Args:
        x: rows, K.
        weight: experts, K, N.
        offs: where each expert's rows end.

    Returns:
        Rows, N, 0 where no expert has the row.
    """
    if not _can_be_grouped(x, weight):
        return NotImplemented
    return _grouped_mm(x, weight, offs.to(torch.int32))


def _experts_backward(x: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor, grad_output: torch.Tensor) -> Any:
    """The gradients of the rows and of the weights."""
    gradient = grad_output.contiguous()
    if not _can_be_grouped(x, weight, gradient):
        return NotImplemented
    ends = offs.to(torch.int32)
    return _grouped_mm(gradient, weight.transpose(1, 2), ends), _grouped_mm(x.t(), gradient, ends)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "transformers::grouped_mm_fallback": _experts,
    "transformers::grouped_mm_fallback_backward": _experts_backward,
}
