"""One call of a row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from .arguments import Target

#: What a road does to the function under test: nothing, or `torch.compile`.
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
#: The call itself, which gives a tree of tensors.
Call = Callable[[Wrap], Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """One call.

    Attributes:
        prepare: makes fresh arguments for a target and gives the call.
        summary: the arguments in words.
    """

    prepare: Callable[[Target], Call]
    summary: str


def gradients(outputs: Any, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """The gradients of `inputs` for fixed cotangents of everything in `outputs` that has a gradient."""
    found = [x for x in tree_leaves(outputs) if isinstance(x, torch.Tensor) and x.requires_grad]
    if not found or not inputs:
        return []
    generator = torch.Generator().manual_seed(0)
    cotangents = [
        torch.randn(x.shape, generator=generator, dtype=torch.complex128 if x.is_complex() else torch.float64).to(
            device=x.device, dtype=x.dtype
        )
        for x in found
    ]
    return list(torch.autograd.grad(found, inputs, cotangents, allow_unused=True))
