"""Convolutions with kept filters in oneDNN's order: the row of `packed.packed_convolution` among their kernels."""

from __future__ import annotations

from typing import Any

import torch

from ..kernels import Kernel, Packing, Verdict
from ..linalg import packed
from .convolution_problem import ConvolutionProblem, can_pack, is_large

#: Multiplications that a convolution must have for a call out of XLA's program to pay.
LEAST = 1 << 20


def accepts(problem: ConvolutionProblem) -> Verdict:
    """Whether the kept filters can be packed, and the convolution is worth a call."""
    return can_pack(problem) and is_large(problem, LEAST) and packed.accepts(problem.platform, problem.dtype)


def _arguments(problem: ConvolutionProblem, filters: torch.Tensor) -> tuple[Any, ...]:
    stride, padding, dilation, _, _, groups = problem.geometry
    geometry = [*stride], [*padding], [*dilation], groups
    size = [*problem.image]
    return packed.packed_filters(filters, size, *geometry), size, *geometry


KERNEL = Kernel(
    "oneDNN, packed filters",
    accepts,
    available=packed.available_at_all,
    thresholds=lambda: {"least multiplications": LEAST},
    packing=Packing(
        torch.ops.lazy_runtime.pack_filters.default,
        torch.ops.lazy_runtime.packed_convolution.default,
        packed.room,
        _arguments,
        in_bytes=True,
        upcasts=True,
    ),
)
