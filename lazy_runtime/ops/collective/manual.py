"""`lazy_runtime::full_to_shard` and `shard_to_full`: from a sharded tensor to what each device has of it, and back.

In between, the tensor has the shape of a part, and each device its own: to XLA it counts as a copy on every device, so
that what is computed of it is computed by each device alone. A sharding comes as for `lazy_runtime::shard`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import torch

from ...tensor import sharding
from ..registry import op

_library = torch.library.Library("lazy_runtime", "FRAGMENT")
_library.define("full_to_shard(Tensor tensor, int[] device_ids, int[] mesh_shape, int[] cuts) -> Tensor")
_library.define("shard_to_full(Tensor tensor, int[] device_ids, int[] mesh_shape, int[] cuts) -> Tensor")

Numbers = Sequence[int]


def _parts(mesh_shape: Numbers, cuts: Numbers) -> list[int]:
    """Into how many parts each dimension is cut."""
    return [math.prod(mesh_shape[axis] for axis in along) for along in sharding.decode(cuts)]


def _of_shard(tensor: torch.Tensor, device_ids: Numbers, mesh_shape: Numbers, cuts: Numbers) -> torch.Tensor:
    sizes = [size // count for size, count in zip(tensor.shape, _parts(mesh_shape, cuts), strict=True)]
    return torch.empty(sizes, dtype=tensor.dtype, device=tensor.device)


def _of_full(tensor: torch.Tensor, device_ids: Numbers, mesh_shape: Numbers, cuts: Numbers) -> torch.Tensor:
    sizes = [size * count for size, count in zip(tensor.shape, _parts(mesh_shape, cuts), strict=True)]
    return torch.empty(sizes, dtype=tensor.dtype, device=tensor.device)


_library.impl("full_to_shard", _of_shard, "Meta")
_library.impl("shard_to_full", _of_full, "Meta")


@op("lazy_runtime::full_to_shard")
def full_to_shard(tensor, device_ids, mesh_shape, cuts, *, out):
    if out.device.grid is None:
        return tensor
    return _mapped(tensor, sharding.resolve(out.device, device_ids, mesh_shape, sharding.decode(cuts)), True)


@op("lazy_runtime::shard_to_full")
def shard_to_full(tensor, device_ids, mesh_shape, cuts, *, out):
    if out.device.grid is None:
        return tensor
    return _mapped(tensor, sharding.resolve(out.device, device_ids, mesh_shape, sharding.decode(cuts)), False)


def _mapped(tensor: Any, lies: jax.sharding.NamedSharding, to_shards: bool) -> Any:
    whole, copy = lies.spec, jax.sharding.PartitionSpec()
    specs = (whole, copy) if to_shards else (copy, whole)
    return jax.shard_map(lambda x: x, mesh=lies.mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False)(tensor)
