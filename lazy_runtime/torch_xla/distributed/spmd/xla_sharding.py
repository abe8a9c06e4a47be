"""Which tensor lies how on the devices of a mesh: `mark_sharding` and its like."""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from ....common.skipped_by_dynamo import skip
from ....compat.torch import tree_flatten, tree_unflatten
from ... import runtime as xr
from .linear import EinsumLinear, XLAPatchedLinear, apply_xla_patch_to_nn_linear, xla_patched_nn_linear_forward
from .manual import disable_manual_sharding, enable_manual_sharding
from .mesh import HybridMesh, Mesh, PartitionSpec, get_1d_mesh, get_global_mesh, set_global_mesh
from .op_sharding import XlaShardingSpec
from .sharding_type import ShardingType
from .xla_sharded_tensor import XLAShardedTensor

if TYPE_CHECKING:
    from jax.sharding import NamedSharding

__all__ = [
    "EinsumLinear",
    "HybridMesh",
    "MarkShardingFunction",
    "Mesh",
    "PyTreeA",
    "PyTreeB",
    "ShardingSpec",
    "ShardingType",
    "XLAPatchedLinear",
    "annotate_custom_sharding",
    "apply_backward_optimization_barrier",
    "apply_xla_patch_to_nn_linear",
    "clear_sharding",
    "disable_manual_sharding",
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

#: Trees of tensors, for type checkers.
PyTreeA = TypeVar("PyTreeA")
PyTreeB = TypeVar("PyTreeB")


@skip
def mark_sharding(t: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec) -> XLAShardedTensor:
    """Cuts a tensor among the devices of a mesh, and has it stay so. XLA partitions the programs that use it.

    Of a tensor with data the data moves; a pending result is brought into this order in the program that computes it.
    What is written to the tensor afterwards, by an optimizer for instance, lies as it does. A dimension that the
    devices do not share equally is cut within programs alone; the tensor's buffers have all of it on each device.

    Args:
        t: an xla tensor, which is changed in place as far as its place on the devices goes.
        partition_spec: for each dimension of the tensor the axis of the mesh, by number or name, along which it is cut;
            a tuple for several, None for none.

    Returns:
        the tensor as `XLAShardedTensor`.

    Raises:
        ValueError: the mesh and the spec are none for this tensor.
        RuntimeError: it is sharded in another way already, or `runtime.use_spmd()` has not been called.
    """
    from ....dispatcher import mark_sharding

    tensor = unwrap_sharded_tensor(t)
    mark_sharding.mark(tensor, _sharding(tensor, mesh, partition_spec))
    found = wrap_as_sharded_tensor(t)
    found.mesh_shape, found.partition_spec = mesh.mesh_shape, tuple(partition_spec)
    return found


@skip
def annotate_custom_sharding(t: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec) -> XLAShardedTensor:
    """Has those who read a tensor from now on see it cut so, whatever it was marked with: a step in the program where
    it changes its place. The mark stays, and what is written to the tensor lies as that says.

    Args:
        t, mesh, partition_spec: see `mark_sharding`.

    Returns:
        the tensor as `XLAShardedTensor`.

    Raises:
        ValueError, RuntimeError: see `mark_sharding`.
    """
    from ....dispatcher import mark_sharding

    tensor = unwrap_sharded_tensor(t)
    mark_sharding.annotate(tensor, _sharding(tensor, mesh, partition_spec))
    found = XLAShardedTensor(tensor)
    found.mesh_shape, found.partition_spec = mesh.mesh_shape, tuple(partition_spec)
    return found


def shard_as(a: PyTreeA, b: PyTreeB) -> tuple[PyTreeA, PyTreeB]:
    """Has the tensors of two trees lie as each other, in whatever way (`jax.experimental.shard_alike`).

    Args:
        a, b: trees of one structure, of xla tensors and None.

    Returns:
        the trees, with tensors that do, if one of them is used.

    Raises:
        ValueError: the trees have different structures.
    """
    flat_a, structure_a = tree_flatten(a)
    flat_b, structure_b = tree_flatten(b)
    if structure_a != structure_b or any((x is None) != (y is None) for x, y in zip(flat_a, flat_b, strict=True)):
        raise ValueError(f"shard_as: expected two trees of one structure, got {structure_a} and {structure_b}")
    pairs = [(x, y) if x is None else _Alike.apply(x, y) for x, y in zip(flat_a, flat_b, strict=True)]
    made_a: Any = tree_unflatten([pair[0] for pair in pairs], structure_a)  # type: ignore[index]
    made_b: Any = tree_unflatten([pair[1] for pair in pairs], structure_b)  # type: ignore[index]
    return made_a, made_b


class _Alike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        from ....functions import jax_function

        return tuple(jax_function.call(_alike, [x, y], "shard_alike", "shard_alike"))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients


def _alike(x: Any, y: Any) -> Any:
    from jax.experimental.shard_alike import shard_alike

    return shard_alike(x, y)


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
    _require_entries(tensor.shape, cuts, partition_spec)
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

    def xla_spec(self, t: torch.Tensor) -> XlaShardingSpec | None:
        """How a tensor of the batch is to lie, in PyTorch/XLA's form; None if the spec is not for it."""
        if not self.can_apply(t):
            return None
        return XlaShardingSpec(t, self.mesh.get_op_sharding(self.partition_spec), self.minibatch)

    def sharding(self, t: torch.Tensor, whole_shape: Sequence[int] | None = None) -> NamedSharding | None:
        """How a tensor of the batch is to lie; None if the spec is not for it.

        Args:
            whole_shape: what the method of this name says of it.

        Raises:
            ValueError: the devices cannot share the rows equally that each process has loaded.
        """
        spec = self.partition_spec
        if whole_shape is not None and not self.can_apply(t):
            spec = (*spec[:1], *[None] * (t.dim() - 1))
        elif not self.can_apply(t):
            return None
        found = _resolved(whole_shape or t.shape, self.mesh, spec, "a tensor of the batch")
        if whole_shape is not None:
            _require_equal_rows(whole_shape, self.mesh, spec)
        return found


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
    _require_entries(shape, cuts, partition_spec, what)
    return wanted


def _require_xla(tensor: torch.Tensor, who: str) -> None:
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "xla":
        where = tensor.device if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise ValueError(f"{who}: expected a tensor on xla, got {where}: move it there first")


def _require_entries(
    shape: Sequence[int], cuts: Sequence[Sequence[int]], partition_spec: PartitionSpec, what: str = "the tensor"
) -> None:
    if len(cuts) != len(shape):
        raise ValueError(
            f"partition_spec: expected an entry for each of the {len(shape)} dimensions of {what} of shape "
            f"{list(shape)}, got {len(cuts)}: {tuple(partition_spec)}"
        )


def _require_equal_rows(shape: Sequence[int], mesh: Mesh, partition_spec: PartitionSpec) -> None:
    along = mesh.cuts(partition_spec)[0]
    parts = math.prod(mesh.mesh_shape[axis] for axis in along)
    if shape[0] % parts:
        names = mesh.axis_names or tuple(range(len(mesh.mesh_shape)))
        axes = " and ".join(f"{names[axis]!r} ({mesh.mesh_shape[axis]})" for axis in along)
        raise ValueError(
            f"ShardingSpec(minibatch=True): a tensor of the batch of shape {list(shape)} cannot be cut along the "
            f"mesh's {axes}: dimension 0 has {shape[0]} elements, which {parts} devices cannot share equally"
        )
