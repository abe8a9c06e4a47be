"""PyTorch/XLA's `distributed.spmd`: tensors sharded over the devices of a process, and programs that XLA partitions."""

from ....common.on_demand import submodules
from . import debugging, dynamo_mark_sharding
from .manual import _mark_manual_sharding
from .mesh import HybridMesh, Mesh, get_1d_mesh, get_global_mesh, set_global_mesh
from .xla_sharded_tensor import XLAShard, XLAShardedTensor
from .xla_sharding import (
    EinsumLinear,
    MarkShardingFunction,
    ShardingSpec,
    ShardingType,
    XLAPatchedLinear,
    annotate_custom_sharding,
    apply_backward_optimization_barrier,
    apply_xla_patch_to_nn_linear,
    clear_sharding,
    disable_manual_sharding,
    enable_manual_sharding,
    mark_sharding,
    mark_sharding_with_gradients,
    shard_as,
    unwrap_sharded_tensor,
    wrap_as_sharded_tensor,
    wrap_if_sharded,
    xla_patched_nn_linear_forward,
)

__all__ = [
    "EinsumLinear",
    "HybridMesh",
    "MarkShardingFunction",
    "Mesh",
    "ShardingSpec",
    "ShardingType",
    "XLAPatchedLinear",
    "XLAShard",
    "XLAShardedTensor",
    "_mark_manual_sharding",
    "annotate_custom_sharding",
    "apply_backward_optimization_barrier",
    "apply_xla_patch_to_nn_linear",
    "clear_sharding",
    "debugging",
    "disable_manual_sharding",
    "dynamo_mark_sharding",
    "enable_manual_sharding",
    "get_1d_mesh",
    "get_global_mesh",
    "mark_sharding",
    "mark_sharding_with_gradients",
    "set_global_mesh",
    "shard_as",
    "unwrap_sharded_tensor",
    "wrap_as_sharded_tensor",
    "wrap_if_sharded",
    "xla_patched_nn_linear_forward",
]

_OF_API = ("auto_policy", "xla_distribute_module", "xla_distribute_tensor")
_submodule = submodules(__name__, "api")


def __getattr__(name: str) -> object:
    # DTensor is imported where it is asked for
    return getattr(_submodule("api"), name) if name in _OF_API else _submodule(name)
