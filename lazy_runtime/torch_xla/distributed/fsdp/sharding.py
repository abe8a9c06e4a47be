"""A parameter in parts: what each rank keeps of it, how it is put together, and how its gradient is shared out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from ...core import collectives
from .utils import dummy_all_gather

__all__ = ["FlatMetadata", "Layout", "ShardedParameter", "flatten"]


class Layout(NamedTuple):
    """Which ranks share a parameter, and how.

    Attributes:
        world: how many ranks share it.
        rank: which of the parts is this rank's.
        groups: of ranks, see `xm.all_reduce`; None for one of all.
        on_dim_0: the first dimension is cut; otherwise the parameter as one row of elements.
        multiple: parts are filled up to a multiple of so many elements, or rows.
        compute_dtype: what floats are gathered in; None for as they are kept.
        fp32_reduce: gradients are summed as float32.
        is_gathered, is_reduced: False for collectives that are left out, to look at their cost.
    """

    world: int
    rank: int
    groups: Any
    on_dim_0: bool
    multiple: int
    compute_dtype: torch.dtype | None
    fp32_reduce: bool
    is_gathered: bool
    is_reduced: bool


class FlatMetadata(NamedTuple):
    """Parameters that lie one after the other in one: their names, shapes, and how many elements each has."""

    names: list[str]
    shapes: list[torch.Size]
    numels: list[int]


class ShardedParameter:
    """A parameter of which this rank keeps a part.

    Args:
        full: the parameter.
        name: within the wrapped module.
        layout: see `Layout`.

    Attributes:
        shard: the part, which takes the parameter's place.
        size: of the whole.
        unreduced: gradients of the whole that were not shared out yet (`no_sync`).
    """

    def __init__(self, full: torch.Tensor, name: str, layout: Layout):
        self.name, self.layout, self.size, self.dtype = name, layout, full.shape, full.dtype
        padded = self._padded(full.detach())
        rows = padded.shape[0] // layout.world
        part = padded[layout.rank * rows : (layout.rank + 1) * rows].clone()
        self.shard = nn.Parameter(part.to("xla"), requires_grad=full.requires_grad)
        self.unreduced: torch.Tensor | None = None

    def _padded(self, full: torch.Tensor) -> torch.Tensor:
        """The whole as all parts together have it."""
        rows = full if self.layout.on_dim_0 and full.dim() else full.reshape(-1)
        missing = -rows.shape[0] % (self.layout.world * self.layout.multiple)
        if not missing:
            return rows
        return torch.cat([rows, rows.new_zeros(missing, *rows.shape[1:])])

    def full(self, after: Sequence[torch.Tensor] = ()) -> torch.Tensor:
        """The whole, gathered from all ranks, in the dtype of computations.

        Args:
            after: tensors that have to be there before.
        """
        layout, part = self.layout, self.shard.detach()
        if layout.compute_dtype is not None and part.is_floating_point():
            part = part.to(layout.compute_dtype)
        if after:
            part, *_ = torch.ops.lazy_runtime.optimization_barrier([part, *after])
        gather: Callable[..., Any] = collectives.all_gather if layout.is_gathered else dummy_all_gather
        whole = gather(part, 0, groups=layout.groups) if layout.world > 1 else part.clone()
        if layout.on_dim_0 and len(self.size):
            return whole[: self.size[0]]
        return whole[: math.prod(self.size)].view(self.size)

    def shared_out(self, gradient: torch.Tensor, before: float, after: float) -> torch.Tensor:
        """This rank's part of the sum of all ranks' gradients.

        Args:
            before, after: what the gradients and their sums are divided by.
        """
        layout = self.layout
        if layout.fp32_reduce and gradient.is_floating_point():
            gradient = gradient.float()
        padded = self._padded(gradient) / before
        if layout.world == 1:
            part = padded
        elif layout.is_reduced:
            part = collectives.reduce_scatter(collectives.REDUCE_SUM, padded, 1.0, 0, layout.world, layout.groups)
        else:
            part = padded.chunk(layout.world)[layout.rank]
        return (part / after).to(self.dtype)


def flatten(named: Sequence[tuple[str, torch.Tensor]]) -> list[tuple[torch.Tensor, FlatMetadata]]:
    """The parameters one after the other, those of one dtype together that want gradients or do not."""
    kinds: dict[Any, list[tuple[str, torch.Tensor]]] = {}
    for name, parameter in named:
        kinds.setdefault((parameter.dtype, parameter.requires_grad), []).append((name, parameter))
    found = []
    for (_, wants_gradient), members in kinds.items():
        flat = torch.cat([parameter.detach().reshape(-1) for _, parameter in members])
        shapes = [parameter.shape for _, parameter in members]
        metadata = FlatMetadata([name for name, _ in members], shapes, [shape.numel() for shape in shapes])
        found.append((flat.requires_grad_(wants_gradient), metadata))
    return found
