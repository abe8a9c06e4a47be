"""`torch.ops.xla.dynamo_mark_sharding`: a sharding that compiled functions have without a break of their graph."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import torch

from .mesh import Mesh
from .xla_sharding import mark_sharding_with_gradients

__all__ = ["dynamo_mark_sharding"]


def dynamo_mark_sharding(
    input: torch.Tensor, device_ids: Sequence[int], mesh_shape: Sequence[int], axis_names: str, partition_spec: str
) -> torch.Tensor:
    """A tensor with the elements of `input`, sharded as `spmd.mark_sharding` does, and so is its gradient.

    Args:
        device_ids, mesh_shape: of the mesh.
        axis_names, partition_spec: as text: `"('data', 'model')"`, `"(0, None)"`.
    """
    names = ast.literal_eval(axis_names)
    mesh = Mesh(list(device_ids), list(mesh_shape), names)
    return mark_sharding_with_gradients(input, mesh, ast.literal_eval(partition_spec))


_library = torch.library.Library("xla", "FRAGMENT")
_library.define(
    "dynamo_mark_sharding(Tensor input, int[] device_ids, int[] mesh_shape, str axis_names, str partition_spec) "
    "-> Tensor"
)
_library.impl("dynamo_mark_sharding", dynamo_mark_sharding, "CompositeImplicitAutograd")
