"""The functions of PyTorch/XLA's C++ module that are about shardings, for `_XLAC`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from .. import runtime as xr
from ..distributed.spmd.op_sharding import OpSharding

if TYPE_CHECKING:
    from jax.sharding import NamedSharding

__all__ = [
    "OpSharding",
    "_get_xla_op_sharding",
    "_get_xla_sharding_specs",
    "_global_tensor_from_cpu_shards",
    "_spmd_full_to_shard_shape",
    "_spmd_shard_to_full_shape",
    "_xla_annotate_custom_sharding",
    "_xla_clear_sharding",
    "_xla_force_spmd_device",
    "_xla_get_auto_sharding",
    "_xla_get_spmd_config_is_locked",
    "_xla_mark_sharding",
    "_xla_set_auto_sharding",
]


def _xla_get_auto_sharding() -> bool:
    """Whether XLA decides how all tensors are sharded: never here (`spmd.auto_policy` does)."""
    return False


def _xla_set_auto_sharding() -> None:
    """See `xr.use_spmd(auto=True)`, which raises."""
    xr.use_spmd(auto=True)


def _xla_get_spmd_config_is_locked() -> bool:
    """Whether there are devices already, which were made for one way of using them or the other."""
    from ...platform import xla_devices

    return xla_devices.is_started()


def _xla_force_spmd_device() -> None:
    """See `xr.use_spmd`."""
    xr.use_spmd()


def _xla_clear_sharding(tensor: torch.Tensor) -> None:
    """See `xs.clear_sharding`."""
    from ..distributed.spmd.xla_sharding import clear_sharding

    clear_sharding(tensor)


def _get_xla_sharding_specs(tensors: Sequence[torch.Tensor]) -> list[str]:
    """How tensors are sharded, as XLA writes it; empty for those that are not."""
    from ...tensor import sharding
    from ..distributed.spmd import unwrap_sharded_tensor

    return [sharding.text(unwrap_sharded_tensor(tensor)) for tensor in tensors]


def _get_xla_op_sharding(tensor: torch.Tensor) -> OpSharding | None:
    """How a tensor is sharded; None if it is not."""
    from ...tensor import sharding
    from ..distributed.spmd import unwrap_sharded_tensor
    from ..distributed.spmd.debugging import of_text

    text = sharding.text(unwrap_sharded_tensor(tensor))
    return of_text(text) if text else None


def _xla_mark_sharding(tensor: torch.Tensor, op_sharding: OpSharding) -> None:
    """`spmd.mark_sharding` by an `OpSharding`."""
    from ...dispatcher import mark_sharding

    mark_sharding.mark(tensor, _resolved(tensor, op_sharding))


def _xla_annotate_custom_sharding(tensor: torch.Tensor, op_sharding: OpSharding) -> None:
    """Has what reads a tensor from now on see it sharded so; a mark of the tensor's own stays as it is."""
    from ...dispatcher import mark_sharding

    mark_sharding.annotate(tensor, _resolved(tensor, op_sharding))


def _spmd_full_to_shard_shape(tensor: torch.Tensor) -> torch.Tensor:
    """What each device has of a sharded tensor.

    Raises:
        RuntimeError: it is not sharded.
    """
    found = _get_xla_op_sharding(tensor)
    if found is None:
        raise RuntimeError("_spmd_full_to_shard_shape: the tensor is not sharded: call mark_sharding first")
    if found.type.name == "REPLICATED":
        return tensor.clone()
    return torch.ops.lazy_runtime.full_to_shard(tensor, *_operands(found, tensor.dim()))


def _spmd_shard_to_full_shape(
    tensor: torch.Tensor, op_sharding: OpSharding, full_shape: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """The tensor whose parts the devices have.

    Raises:
        RuntimeError: parts of this shape do not make such a tensor.
    """
    found = tensor.clone()
    if op_sharding.type.name != "REPLICATED":
        found = torch.ops.lazy_runtime.shard_to_full(tensor, *_operands(op_sharding, tensor.dim()))
    if tuple(found.shape) != tuple(full_shape):
        raise RuntimeError(f"the parts make a tensor of shape {list(found.shape)}, not {list(full_shape)}")
    return found.to(dtype)


def _global_tensor_from_cpu_shards(
    shards: Sequence[torch.Tensor], op_sharding: OpSharding, global_shape: Sequence[int] | None = None
) -> torch.Tensor:
    """An xla tensor of parts, one for each device of this process.

    Args:
        shards: CPU tensors of one shape, in the devices' order.
        op_sharding: how they lie together.
        global_shape: of the tensor; what the parts make, by default. Where it is smaller, the last parts have elements
            that are none of the tensor's.

    Raises:
        RuntimeError: there are more or fewer parts, or they do not make such a tensor.
    """
    from ...dispatcher import mark_sharding
    from ..distributed.spmd import shards as places

    dims, first = shards[0].dim(), shards[0]
    counts = op_sharding.tiles.shape[:dims] if op_sharding.type.name != "REPLICATED" else (1,) * dims
    whole = tuple(size * count for size, count in zip(first.shape, counts, strict=True))
    shape = whole if global_shape is None else tuple(global_shape)
    parts = [-(-size // count) for size, count in zip(shape, counts, strict=False)]
    if len(shape) != dims or parts != list(first.shape):
        raise RuntimeError(
            f"parts of shape {list(first.shape)} make a tensor of shape {list(whole)}, not {list(shape)}"
        )
    found = torch.zeros(shape, dtype=first.dtype, device="xla")
    mark_sharding.mark(found, _resolved(found, op_sharding))
    known = places.of(found)
    if len(shards) != len(known):
        raise RuntimeError(f"expected a part for each of {len(known)} devices, got {len(shards)}")
    places.load(found, [replace(each, data=given) for given, each in zip(shards, known, strict=True)])
    return found


def _operands(op_sharding: OpSharding, dims: int) -> tuple[list[int], list[int], list[int]]:
    ids, shape, cuts = op_sharding.over(dims)
    return ids, shape, [number for along in cuts for number in (len(along), *along)]


def _resolved(tensor: torch.Tensor, op_sharding: OpSharding) -> NamedSharding:
    from ...ir import grid
    from ...platform import xla_devices
    from ...tensor import sharding

    device = xla_devices.get(tensor.device)
    if device.grid is None:
        raise RuntimeError("shardings: call runtime.use_spmd() at the beginning of the program")
    ids, shape, cuts = op_sharding.over(tensor.dim())
    return sharding.resolve(device, ids, shape, cuts) if ids else grid.sharding(device.grid, [])
