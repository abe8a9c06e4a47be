"""Parts of a program in which each device computes on its own part of a tensor, and collectives are the user's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .mesh import Mesh, PartitionSpec, get_global_mesh
from .xla_sharded_tensor import XLAShardedTensor

__all__ = ["disable_manual_sharding", "enable_manual_sharding"]


def enable_manual_sharding(
    t: torch.Tensor, partition_spec: PartitionSpec, *, mesh: Mesh | None = None
) -> XLAShardedTensor:
    """What each device has of a tensor that is cut so. What is computed of that is computed by each device alone, until
    `disable_manual_sharding` puts the parts together. Gradients go through.

    Args:
        t: an xla tensor.
        partition_spec: see `mark_sharding`.
        mesh: by default the global one.

    Returns:
        a tensor of a part's shape; who reads it gets the first device's.

    Raises:
        ValueError: there is no mesh, or the tensor cannot be cut so.
    """
    found = _ToShard.apply(_unwrapped(t), *_sharding(t, partition_spec, mesh, "enable_manual_sharding"))
    return XLAShardedTensor(found)  # type: ignore[arg-type]


def disable_manual_sharding(
    t: torch.Tensor, partition_spec: PartitionSpec, full_shape: Sequence[int], *, mesh: Mesh | None = None
) -> XLAShardedTensor:
    """The tensor whose parts the devices have.

    Args:
        t: what was computed of tensors of `enable_manual_sharding`.
        partition_spec: how the parts lie together.
        full_shape: of the tensor.
        mesh: by default the global one.

    Raises:
        ValueError: there is no mesh, or parts of this shape do not make such a tensor.
    """
    arguments = _sharding(t, partition_spec, mesh, "disable_manual_sharding")
    found: Any = _ToFull.apply(_unwrapped(t), *arguments)
    if tuple(found.shape) != tuple(full_shape):
        raise ValueError(
            f"disable_manual_sharding: parts of shape {list(t.shape)}, cut by {tuple(partition_spec)}, make a tensor "
            f"of shape {list(found.shape)}, not {list(full_shape)}"
        )
    return XLAShardedTensor(found)


class _ToShard(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: torch.Tensor, *sharding: Any) -> torch.Tensor:
        ctx.sharding = sharding
        return torch.ops.lazy_runtime.full_to_shard(t, *sharding)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return torch.ops.lazy_runtime.shard_to_full(gradients[0], *ctx.sharding), None, None, None


class _ToFull(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: torch.Tensor, *sharding: Any) -> torch.Tensor:
        ctx.sharding = sharding
        return torch.ops.lazy_runtime.shard_to_full(t, *sharding)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return torch.ops.lazy_runtime.full_to_shard(gradients[0], *ctx.sharding), None, None, None


def _mark_manual_sharding(t: torch.Tensor) -> XLAShardedTensor:
    """The tensor as it is: what is computed of parts is computed by each device alone without being told."""
    return XLAShardedTensor(_unwrapped(t))


def _unwrapped(t: torch.Tensor) -> torch.Tensor:
    return t.global_tensor if isinstance(t, XLAShardedTensor) else t


def _sharding(
    t: torch.Tensor, partition_spec: PartitionSpec, mesh: Mesh | None, who: str
) -> tuple[list[int], list[int], list[int]]:
    mesh = get_global_mesh() if mesh is None else mesh
    if mesh is None:
        raise ValueError(f"{who}: there is no mesh: pass mesh=..., or call set_global_mesh(mesh)")
    cuts = mesh.cuts(partition_spec)
    if len(cuts) != t.dim():
        raise ValueError(f"{who}: expected an entry for each of {t.dim()} dimensions, got {tuple(partition_spec)}")
    if who.startswith("enable"):
        for size, along in zip(t.shape, cuts, strict=True):
            for axis in along:
                if size % mesh.mesh_shape[axis]:
                    raise ValueError(f"{who}: {size} elements cannot be cut into {mesh.mesh_shape[axis]} equal parts")
    return mesh.numbers, list(mesh.mesh_shape), [number for along in cuts for number in (len(along), *along)]
