"""`OpSharding`: a sharding as XLA has it, apart from any mesh: which device has which tile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from .sharding_type import ShardingType

if TYPE_CHECKING:
    from .mesh import Mesh, PartitionSpec

__all__ = ["OpSharding", "XlaShardingSpec", "of_mesh"]


class OpSharding:
    """Which device has which tile of a tensor.

    Args:
        tile_assignment: the devices' numbers, nested as the tiles lie; with a dimension more for copies (PARTIAL).
        group_assignment, replication_groups: accepted for PyTorch/XLA's sake; `tile_assignment` has them too.
        sharding_type: REPLICATED, TILED or PARTIAL.

    Raises:
        ValueError: it is another type.
    """

    def __init__(
        self, tile_assignment: Any, group_assignment: Any, replication_groups: Any, sharding_type: ShardingType | int
    ):
        self.type = ShardingType(sharding_type)
        if self.type not in (ShardingType.REPLICATED, ShardingType.TILED, ShardingType.PARTIAL):
            raise ValueError(f"OpSharding: expected REPLICATED, TILED or PARTIAL, got {self.type.name}")
        self.tiles = np.array(tile_assignment, np.int64)

    def over(self, dims: int) -> tuple[list[int], list[int], list[Sequence[int]]]:
        """The same as a mesh of its own: its devices, its shape, and for each dimension of a tensor the mesh's axes."""
        if self.type is ShardingType.REPLICATED:
            return [], [], [[] for _ in range(dims)]
        return self.tiles.reshape(-1).tolist(), list(self.tiles.shape), [[axis] for axis in range(dims)]

    def __str__(self) -> str:
        if self.type is ShardingType.REPLICATED:
            return "{replicated}"
        rest = " last_tile_dim_replicate" if self.type is ShardingType.PARTIAL else ""
        tiles = ",".join(map(str, self.tiles.shape))
        return f"{{devices=[{tiles}]{','.join(map(str, self.tiles.reshape(-1)))}{rest}}}"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpSharding) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


def of_mesh(mesh: Mesh, partition_spec: PartitionSpec) -> OpSharding:
    """The tiles that a partition spec cuts over a mesh."""
    cuts = mesh.cuts(partition_spec)
    order = [axis for along in cuts for axis in along]
    if not order:
        return OpSharding([], [], [], ShardingType.REPLICATED)
    others = [axis for axis in range(len(mesh.mesh_shape)) if axis not in order]
    sizes = [int(np.prod([mesh.mesh_shape[axis] for axis in along])) for along in cuts]
    copies = int(np.prod([mesh.mesh_shape[axis] for axis in others]))
    devices = mesh.get_logical_mesh().transpose([*order, *others])
    if copies == 1:
        return OpSharding(devices.reshape(sizes), [], [], ShardingType.TILED)
    return OpSharding(devices.reshape([*sizes, copies]), [], [], ShardingType.PARTIAL)


class XlaShardingSpec(NamedTuple):
    """How a tensor of a batch is to lie.

    Attributes:
        tensor: the tensor.
        sharding: its tiles.
        minibatch: each process has some of its rows.
    """

    tensor: torch.Tensor
    sharding: OpSharding
    minibatch: bool
