"""PyTorch/XLA's collectives that gradients go through."""

from __future__ import annotations

from typing import Any

import torch

from ...processes import thread_ranks
from .. import runtime as xr
from . import collectives

__all__ = [
    "AllGather",
    "AllReduce",
    "AllReduceSumLayer",
    "AllToAll",
    "SyncBatchNorm",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "distributed_mm",
]


class AllReduce(torch.autograd.Function):
    """See `all_reduce`."""

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
    return AllReduce.apply(value, reduce_type, scale, groups)  # type: ignore[return-value]


class AllGather(torch.autograd.Function):
    """See `all_gather`."""

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
    return AllGather.apply(value, dim)  # type: ignore[return-value]


class AllToAll(torch.autograd.Function):
    """See `all_to_all`."""

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
    return AllToAll.apply(value, split_dimension, concat_dimension, split_count, groups)  # type: ignore[return-value]


class AllReduceSumLayer(torch.autograd.Function):
    """The sum over the ranks; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        ctx.member = thread_ranks.member()
        return collectives.all_reduce(collectives.REDUCE_SUM, x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        with ctx.member.here():
            return collectives.all_reduce(collectives.REDUCE_SUM, gradients[0])


def distributed_mm(w: torch.Tensor, x: torch.Tensor, split: int = 1) -> torch.Tensor:
    """The product of a weight that the ranks share and each rank's own input, with gradients.

    Args:
        w: this rank's columns of the weight, `[N, K]` of `[N, K * ranks]`.
        x: this rank's input, `[K * ranks, M]`.
        split: into how many parts along M the input is cut, since the ranks' inputs are gathered for each product.

    Returns:
        this rank's `[N, M]`.

    Raises:
        ValueError: the sizes do not go together, or `split` does not divide M.
    """
    count, rank = xr.world_size(), xr.global_ordinal()
    if w.shape[1] * count != x.shape[0]:
        raise ValueError(
            f"distributed_mm: expected an input with {w.shape[1] * count} rows, {w.shape[1]} for each of {count} "
            f"ranks, got {list(x.shape)}"
        )
    if x.shape[1] % split:
        raise ValueError(f"split: expected a divisor of {x.shape[1]}, got {split}")
    results = []
    for part in x.split(x.shape[1] // split, 1):
        rows = all_gather(part, 1).narrow(0, rank * w.shape[1], w.shape[1])
        summed = AllReduceSumLayer.apply(w @ rows)
        results.append(summed.narrow(1, rank * part.shape[1], part.shape[1]))
    return torch.cat(results, 1)


class SyncBatchNorm(torch.nn.Module):
    """A batch norm over the batches of all ranks together.

    It is what `torch.nn.BatchNorm1d`, 2d and 3d are of one process with the whole batch, running statistics included.
    Each rank's batch is to have the same sizes.

    Args:
        num_features: size of dimension 1.
        eps: added to the variance.
        momentum: share of the batch's statistics in the running ones.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1):
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.weight = torch.nn.Parameter(torch.ones(num_features))
        self.bias = torch.nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    running_mean: torch.Tensor
    running_var: torch.Tensor

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The batch, normalized.

        Args:
            batch: `[N, num_features, ...]`, 2 to 5 dimensions.

        Raises:
            ValueError: it has other dimensions.
        """
        if not 2 <= batch.dim() <= 5 or batch.shape[1] != self.num_features:
            raise ValueError(
                f"SyncBatchNorm: expected 2 to 5 dimensions, the second of {self.num_features}, got {list(batch.shape)}"
            )
        if not self.training:
            return torch.nn.functional.batch_norm(
                batch, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        others = [dim for dim in range(batch.dim()) if dim != 1]
        sizes = [1, -1] + [1] * (batch.dim() - 2)
        ranks = xr.world_size()
        mean = AllReduceSumLayer.apply(batch.mean(others)) / ranks
        centered = batch - mean.view(sizes)  # the squares of what is far from 0 would lose digits
        variance = AllReduceSumLayer.apply(centered.square().mean(others)) / ranks
        with torch.no_grad():
            count = batch.numel() // self.num_features * ranks
            self.running_mean.lerp_(mean.detach().to(self.running_mean.dtype), self.momentum)
            unbiased = variance.detach() * (count / max(count - 1, 1))
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return centered * scale.view(sizes) + self.bias.view(sizes)

    def extra_repr(self) -> str:
        """What `print` shows of it."""
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"
