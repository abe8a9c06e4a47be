"""Which tensor lies how on the devices of a mesh: `mark_sharding` and its like."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ....common.skipped_by_dynamo import skip
from ... import runtime as xr
from .mesh import HybridMesh, Mesh, PartitionSpec, get_1d_mesh, get_global_mesh, set_global_mesh
from .sharding_type import ShardingType
from .xla_sharded_tensor import XLAShardedTensor

if TYPE_CHECKING:
    from jax.sharding import NamedSharding

__all__ = [
    "HybridMesh",
    "MarkShardingFunction",
    "Mesh",
    "ShardingSpec",
    "ShardingType",
    "apply_backward_optimization_barrier",
    "clear_sharding",
    "get_1d_mesh",
    "get_global_mesh",
    "mark_sharding",
    "mark_sharding_with_gradients",
    "set_global_mesh",
    "unwrap_sharded_tensor",
    "wrap_as_sharded_tensor",
    "wrap_if_sharded",
]


@skip
def mark_sharding(t: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec) -> XLAShardedTensor:
    """Cuts a tensor among the devices of a mesh, and has it stay so. XLA partitions the programs that use it.

    Of a tensor with data the data moves; a pending result is brought into this order in the program that computes it.
    What is written to the tensor afterwards, by an optimizer for instance, lies as it does.

    Args:
        t: an xla tensor, which is changed in place as far as its place on the devices goes.
        partition_spec: for each dimension of the tensor the axis of the mesh, by number or name, along which it is cut;
            a tuple for several, None for none.

    Returns:
        the tensor as `XLAShardedTensor`.

    Raises:
        ValueError: the mesh and the spec are none for this tensor, or its sizes cannot be divided so.
        RuntimeError: it is sharded in another way already, or `runtime.use_spmd()` has not been called.
    """
    from ....dispatcher import mark_sharding

    tensor = unwrap_sharded_tensor(t)
    mark_sharding.mark(tensor, _sharding(tensor, mesh, partition_spec))
    return wrap_as_sharded_tensor(t)


@skip
def clear_sharding(t: torch.Tensor) -> torch.Tensor:
    """Undoes `mark_sharding`: the tensor's data is on each device in full."""
    from ....dispatcher import mark_sharding

    tensor = unwrap_sharded_tensor(t)
    _require_xla(tensor, "clear_sharding")
    mark_sharding.unmark(tensor)
    return tensor


class MarkShardingFunction(torch.autograd.Function):
    """`mark_sharding` of a new tensor with the same elements, whose gradient is sharded as it is. Compiled functions
    can have it without a break of their graph.
    """

    @staticmethod
    def forward(ctx: Any, torch_tensor: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec) -> torch.Tensor:
        ctx.partition = mesh, partition_spec
        return _shard(torch_tensor, mesh, partition_spec)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        mesh, partition_spec = ctx.partition
        return _shard(grad_output, mesh, partition_spec), None, None


def mark_sharding_with_gradients(t: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec) -> torch.Tensor:
    """A tensor with the elements of `t`, sharded as `mark_sharding` does, and so is its gradient."""
    return MarkShardingFunction.apply(unwrap_sharded_tensor(t), mesh, partition_spec)  # type: ignore[no-any-return]


def _shard(tensor: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec) -> torch.Tensor:
    cuts = mesh.cuts(partition_spec)
    _require_divisible(tensor.shape, mesh, cuts, partition_spec)
    encoded = [number for along in cuts for number in (len(along), *along)]
    return torch.ops.lazy_runtime.shard(tensor, mesh.numbers, list(mesh.mesh_shape), encoded)


class ShardingSpec:
    """How a loader's batches are sharded (`input_sharding` of `MpDeviceLoader`).

    Args:
        mesh, partition_spec: see `mark_sharding`.
        minibatch: of several processes each loads its part of the batch, as many rows as every other one; together
            they are the tensors that the program sees. Tensors with another number of dimensions are cut then too, in
            the first one as the spec's. Otherwise each process loads the whole batch, all of them the same.

    Raises:
        ValueError: the mesh has no such axis.
    """

    def __init__(self, mesh: Mesh, partition_spec: PartitionSpec, minibatch: bool = False):
        mesh.cuts(partition_spec)
        self.mesh = mesh
        self.partition_spec = tuple(partition_spec)
        self.minibatch = minibatch

    def can_apply(self, t: torch.Tensor) -> bool:
        """Whether a tensor has as many dimensions as the spec. Others in a batch are not sharded."""
        return t.dim() == len(self.partition_spec)

    def apply(self, t: torch.Tensor) -> None:
        """`mark_sharding` of an xla tensor."""
        mark_sharding(t, self.mesh, self.partition_spec)

    def whole_shape(self, t: torch.Tensor) -> tuple[int, ...] | None:
        """The sizes of the tensor of which each process has loaded some rows; None where `t` is all of it."""
        count = xr.process_count()
        if not self.minibatch or count == 1 or not t.dim():
            return None
        return (t.shape[0] * count, *t.shape[1:])

    def sharding(self, t: torch.Tensor, whole_shape: Sequence[int] | None = None) -> NamedSharding | None:
        """How a tensor of the batch is to lie; None if the spec is not for it.

        Args:
            whole_shape: what the method of this name says of it.

        Raises:
            ValueError: its sizes cannot be divided so.
        """
        spec = self.partition_spec
        if whole_shape is not None and not self.can_apply(t):
            spec = (*spec[:1], *[None] * (t.dim() - 1))
        elif not self.can_apply(t):
            return None
        return _resolved(whole_shape or t.shape, self.mesh, spec, "a tensor of the batch")


def apply_backward_optimization_barrier(m: torch.nn.Module) -> None:
    """Has XLA not merge the backward pass of a module with what comes before it."""

    def barrier(module: torch.nn.Module, grad_output: Any) -> Any:
        grads = [grad for grad in grad_output if grad is not None]
        same = iter(torch.ops.lazy_runtime.optimization_barrier(grads))
        return tuple(None if grad is None else next(same) for grad in grad_output)

    m.register_full_backward_pre_hook(barrier)


def wrap_as_sharded_tensor(t: torch.Tensor) -> XLAShardedTensor:
    """The tensor as `XLAShardedTensor`."""
    return t if isinstance(t, XLAShardedTensor) else XLAShardedTensor(t)


def wrap_if_sharded(x: Any) -> Any:
    """What is given, as `XLAShardedTensor` if it is a tensor that is sharded."""
    from ....tensor import sharding

    is_sharded = isinstance(x, torch.Tensor) and x.device.type == "xla" and sharding.of(x) is not None
    return wrap_as_sharded_tensor(x) if is_sharded else x


def unwrap_sharded_tensor(t: torch.Tensor) -> torch.Tensor:
    """The tensor without `XLAShardedTensor` around it."""
    return t.global_tensor if isinstance(t, XLAShardedTensor) else t


# ---- checks


def _sharding(tensor: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec) -> NamedSharding:
    _require_xla(tensor, "mark_sharding")
    if not xr.is_spmd():
        raise RuntimeError("mark_sharding: call runtime.use_spmd() at the beginning of the program")
    try:
        return _resolved(tensor.shape, mesh, partition_spec)
    except ValueError as error:
        name = _name_of(tensor)
        raise ValueError(f"mark_sharding of the parameter {name!r}: {error}" if name else str(error)) from None


def _name_of(tensor: torch.Tensor) -> str:
    """What the largest module that has a parameter calls it; empty if there is none."""
    if not isinstance(tensor, torch.nn.Parameter):
        return ""
    modules = [each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module)]
    names = []
    for module in modules:
        with contextlib.suppress(Exception):  # one that is still being made
            names += [name for name, parameter in module.named_parameters() if parameter is tensor]
    return max(names, key=len, default="")


def _resolved(
    shape: Sequence[int], mesh: Mesh, partition_spec: PartitionSpec, what: str = "the tensor"
) -> NamedSharding:
    from ....platform import xla_devices
    from ....tensor import sharding

    cuts = mesh.cuts(partition_spec)
    wanted = sharding.resolve(xla_devices.get(0), mesh.numbers, mesh.mesh_shape, cuts)
    _require_divisible(shape, mesh, cuts, partition_spec, what)
    return wanted


def _require_xla(tensor: torch.Tensor, who: str) -> None:
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "xla":
        where = tensor.device if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise ValueError(f"{who}: expected a tensor on xla, got {where}: move it there first")


def _require_divisible(
    shape: Sequence[int],
    mesh: Mesh,
    cuts: Sequence[Sequence[int]],
    partition_spec: PartitionSpec,
    what: str = "the tensor",
) -> None:
    what = f"{what} of shape {list(shape)}"
    if len(cuts) != len(shape):
        raise ValueError(
            f"partition_spec: expected an entry for each of the {len(shape)} dimensions of {what}, got "
            f"{len(cuts)}: {tuple(partition_spec)}"
        )
    for dim, along in enumerate(cuts):
        parts = 1
        for axis in along:
            parts *= mesh.mesh_shape[axis]
        if shape[dim] % parts:
            names = mesh.axis_names or tuple(range(len(mesh.mesh_shape)))
            axes = " and ".join(f"{names[axis]!r} ({mesh.mesh_shape[axis]})" for axis in along)
            raise ValueError(
                f"{what} cannot be cut along the mesh's {axes}: dimension {dim} has {shape[dim]} elements, which "
                f"{parts} devices cannot share equally"
            )
