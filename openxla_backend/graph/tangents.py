"""Gradients that a backward graph is given for outputs whose elements share memory.

AOTAutograd (torch 2.13, whatever the backend) lays out such a gradient like the output before it calls the backward
graph: it copies it to memory with the output's strides. Of `x.unfold(0, 3, 1)` two elements of the gradient go to one
place then, and one of them is lost; torch knows that of expanded outputs alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lazy_runtime.compat.tracing import MemoryFormatMeta


def lay_out_apart(metadata: Any) -> None:
    """Has AOTAutograd hand on the gradients of such outputs with each element in a place of its own.

    Args:
        metadata: AOTAutograd's notes on the graph, to which its runtime will refer; None where there are none.
    """
    for tangent in getattr(metadata, "subclass_tangent_meta", None) or ():
        layout = getattr(tangent, "memory_format", None)
        size, stride = getattr(layout, "size", None), getattr(layout, "stride", None)
        if size is not None and stride is not None and not _are_apart(size, stride):
            tangent.memory_format = MemoryFormatMeta(memory_format=torch.contiguous_format)


def _are_apart(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether each dimension steps over all that those with smaller strides reach. That is so of all views that no
    `unfold`, `expand` or `as_strided` has made.
    """
    if 0 in size:
        return True
    reached = 0
    for step, length in sorted(zip(stride, size, strict=True)):
        if length > 1:
            if step <= reached:
                return False
            reached += step * (length - 1)
    return True
