"""PyTorch/XLA's collectives that gradients go through."""

from __future__ import annotations

from typing import Any

import torch

from ...processes import thread_ranks
from .. import runtime as xr
from . import collectives

__all__ = ["all_gather", "all_reduce", "all_to_all"]


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, reduce_type: str, scale: float, groups: Any) -> Any:
        ctx.scale, ctx.groups, ctx.member = scale, groups, thread_ranks.member()
        ctx.kind = reduce_type
        found: Any = collectives.all_reduce(reduce_type, x, scale, groups)
        if reduce_type in (collectives.REDUCE_MIN, collectives.REDUCE_MAX):
            ctx.save_for_backward(x, found)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        with ctx.member.here():
            whole: Any = collectives.all_reduce(collectives.REDUCE_SUM, gradient, ctx.scale, ctx.groups)
        if ctx.kind != collectives.REDUCE_SUM:
            x, found = ctx.saved_tensors
            whole = torch.where(x * ctx.scale == found, whole, torch.zeros_like(whole))
        return whole, None, None, None


def all_reduce(reduce_type: str, value: torch.Tensor, scale: float = 1.0, groups: Any = None) -> torch.Tensor:
    """`xm.all_reduce` of one tensor, with a gradient: each rank's is the sum of all ranks' gradients, where its element
    took part in the result.

    Raises:
        RuntimeError: the reduction is none of sum, min and max.
    """
    if reduce_type not in (collectives.REDUCE_SUM, collectives.REDUCE_MIN, collectives.REDUCE_MAX):
        raise RuntimeError(f"all_reduce: {reduce_type!r} has no gradient here; sum, min and max have")
    return _AllReduce.apply(value, reduce_type, scale, groups)  # type: ignore[return-value]


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int) -> torch.Tensor:
        ctx.dim, ctx.member = dim, thread_ranks.member()
        return collectives.all_gather(x, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        with ctx.member.here():
            count = xr.world_size()
            return collectives.reduce_scatter(collectives.REDUCE_SUM, gradients[0], 1.0, ctx.dim, count), None


def all_gather(value: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """`xm.all_gather`, with a gradient: each rank's is the sum of what all ranks' gradients have for its part."""
    return _AllGather.apply(value, dim)  # type: ignore[return-value]


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, split: int, concat: int, count: int, groups: Any) -> torch.Tensor:
        ctx.arguments, ctx.member = (concat, split, count, groups), thread_ranks.member()
        return collectives.all_to_all(x, split, concat, count, groups)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        with ctx.member.here():
            return collectives.all_to_all(gradients[0], *ctx.arguments), None, None, None, None


def all_to_all(
    value: torch.Tensor,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: Any = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """`xm.all_to_all`, with a gradient, which goes the way back."""
    return _AllToAll.apply(value, split_dimension, concat_dimension, split_count, groups)  # type: ignore[return-value]
