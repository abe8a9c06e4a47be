"""PyTorch/XLA's `distributed.spmd`: tensors sharded over the devices of a process, and programs that XLA partitions."""

from . import debugging
from .mesh import HybridMesh, Mesh, get_1d_mesh, get_global_mesh, set_global_mesh
from .xla_sharded_tensor import XLAShard, XLAShardedTensor
from .xla_sharding import (
    MarkShardingFunction,
    ShardingSpec,
    ShardingType,
    apply_backward_optimization_barrier,
    clear_sharding,
    mark_sharding,
    mark_sharding_with_gradients,
    unwrap_sharded_tensor,
    wrap_as_sharded_tensor,
    wrap_if_sharded,
)

__all__ = [
    "HybridMesh",
    "MarkShardingFunction",
    "Mesh",
    "ShardingSpec",
    "ShardingType",
    "XLAShard",
    "XLAShardedTensor",
    "apply_backward_optimization_barrier",
    "clear_sharding",
    "debugging",
    "get_1d_mesh",
    "get_global_mesh",
    "mark_sharding",
    "mark_sharding_with_gradients",
    "set_global_mesh",
    "unwrap_sharded_tensor",
    "wrap_as_sharded_tensor",
    "wrap_if_sharded",
]
