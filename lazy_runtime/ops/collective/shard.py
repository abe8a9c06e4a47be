"""`lazy_runtime::shard`: the same tensor, lying on the devices in a certain way (`sharding.py`).

A sharding comes as the numbers of the mesh's devices, the mesh's shape, and for each dimension of the tensor how many
axes of the mesh cut it and which: numbers alone, so that Dynamo can trace what makes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import torch

from ...tensor import sharding
from ..registry import op

_library = torch.library.Library("lazy_runtime", "FRAGMENT")
_library.define("shard(Tensor tensor, int[] device_ids, int[] mesh_shape, int[] cuts) -> Tensor")


def _same(tensor: torch.Tensor, device_ids: Sequence[int], mesh_shape: Sequence[int], cuts: Sequence[int]) -> Any:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


_library.impl("shard", _same, "Meta")


@op("lazy_runtime::shard")
def shard(tensor, device_ids, mesh_shape, cuts, *, out):
    if out.device.grid is None:  # a program on plain tensors, or of before `use_spmd`
        return tensor
    wanted = sharding.resolve(out.device, device_ids, mesh_shape, sharding.decode(cuts))
    return jax.lax.with_sharding_constraint(tensor, wanted)
