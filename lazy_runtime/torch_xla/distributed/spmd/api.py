"""DTensor's functions for shardings within one process: torch calls these for meshes of xla devices."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard

from ... import runtime as xr
from .mesh import Mesh
from .xla_sharded_tensor import XLAShardedTensor
from .xla_sharding import mark_sharding

__all__ = [
    "auto_policy",
    "convert_to_xla_mesh",
    "convert_to_xla_partition_spec",
    "log",
    "with_xla",
    "xla_distribute_module",
    "xla_distribute_tensor",
]

log = logging.getLogger(__name__)


def with_xla(func: Callable[..., Any]) -> Callable[..., Any]:
    """A function before whose calls `runtime.use_spmd()` is called."""

    @functools.wraps(func)
    def called(*args: Any, **kwargs: Any) -> Any:
        xr.use_spmd()
        return func(*args, **kwargs)

    return called


def auto_policy(mod_name: str, mod: nn.Module, mesh: DeviceMesh | Mesh) -> None:
    """A `partition_fn` of `xla_distribute_module` that needs no thought: the largest dimension of each parameter that
    the devices of the mesh divide is cut among all of them. XLA finds the rest.

    Args:
        mod_name: of the module within the whole.
        mod: whose own parameters are cut; they are on xla.
        mesh: of all devices.
    """
    found = _as_mesh(mesh)
    count, axes = found.size(), tuple(range(len(found.mesh_shape)))
    for parameter in mod.parameters(recurse=False):
        divisible = [dim for dim, size in enumerate(parameter.shape) if size and size % count == 0]
        largest = max(divisible, key=lambda dim: parameter.shape[dim], default=None)
        mark_sharding(parameter, found, [axes if dim == largest else None for dim in range(parameter.dim())])


def _as_mesh(mesh: DeviceMesh | Mesh | None) -> Mesh:
    if mesh is None:
        count = xr.global_runtime_device_count()
        return Mesh(np.arange(count), (count,))
    return mesh if isinstance(mesh, Mesh) else convert_to_xla_mesh(mesh)


@with_xla
def convert_to_xla_mesh(dt_mesh: DeviceMesh) -> Mesh:
    """Torch's mesh as one of `distributed.spmd`.

    Raises:
        ValueError: it has not as many places as there are devices.
    """
    count = xr.global_runtime_device_count()
    if dt_mesh.size() != count:
        raise ValueError(f"convert_to_xla_mesh: expected a mesh of all {count} devices, got one of {dt_mesh.size()}")
    return Mesh(dt_mesh.mesh.flatten().tolist(), tuple(dt_mesh.mesh.shape), dt_mesh.mesh_dim_names)


@with_xla
def convert_to_xla_partition_spec(tensor: torch.Tensor, placements: Sequence[Placement]) -> tuple[Any, ...]:
    """What DTensor says for each axis of a mesh, for each dimension of a tensor.

    Args:
        tensor: whose dimensions they are.
        placements: one for each axis: `Shard` or `Replicate`.

    Returns:
        for each dimension the axis that cuts it, a tuple of them if there are several, or None.

    Raises:
        ValueError: there is another placement, or none of the tensor's dimensions.
    """
    cuts: list[list[int]] = [[] for _ in range(tensor.dim())]
    for axis, placement in enumerate(placements):
        if isinstance(placement, Shard):
            if not -tensor.dim() <= placement.dim < tensor.dim():
                raise ValueError(f"{placement}: a tensor of {tensor.dim()} dimensions has none of this number")
            cuts[placement.dim].append(axis)
        elif not isinstance(placement, Replicate):
            raise ValueError(f"Unsupported placement type: {type(placement).__name__}; use Shard or Replicate")
    return tuple(None if not axes else axes[0] if len(axes) == 1 else tuple(axes) for axes in cuts)


@with_xla
def xla_distribute_tensor(
    tensor: torch.Tensor, device_mesh: DeviceMesh, placements: Sequence[Placement] | None = None
) -> XLAShardedTensor:
    """A tensor on xla, cut among all devices of this process: `torch.distributed.tensor.distribute_tensor` of a mesh of
    xla devices.

    Args:
        tensor: moved to xla where it is not there.
        device_mesh: of the device type "xla", with all devices.
        placements: one for each axis of the mesh; a copy on each device by default.

    Raises:
        ValueError: the mesh is of other devices, there are more or fewer placements, or the tensor cannot be cut so.
        RuntimeError: it is sharded in another way already.
    """
    if device_mesh.device_type != "xla":
        raise ValueError(
            f"xla_distribute_tensor: expected a mesh of xla devices, got one of {device_mesh.device_type!r}"
        )
    if placements is None:
        placements = [Replicate()] * device_mesh.ndim
    if len(placements) != device_mesh.ndim:
        raise ValueError(f"placements: expected one for each of {device_mesh.ndim} axes of the mesh, got {placements}")
    mesh = convert_to_xla_mesh(device_mesh)
    whole = tensor.global_tensor if isinstance(tensor, XLAShardedTensor) else tensor.to("xla")
    return mark_sharding(whole, mesh, convert_to_xla_partition_spec(whole, placements))


@with_xla
def xla_distribute_module(
    module: nn.Module,
    device_mesh: DeviceMesh | None = None,
    partition_fn: Callable[..., None] | None = None,
    input_fn: Callable[..., Any] | None = None,
    output_fn: Callable[..., Any] | None = None,
) -> nn.Module:
    """A module whose parameters a function cuts among the devices.

    Args:
        module: changed in place, and returned.
        device_mesh: for the functions.
        partition_fn: `(name, module, device_mesh)` of each module within: marks its parameters. With `auto_policy` the
            module is moved to xla first.
        input_fn: `(module, inputs, device_mesh)`: makes the inputs that the module gets.
        output_fn: `(module, output, device_mesh)`: makes the output.

    Raises:
        ValueError: `input_fn` or `output_fn` take another number of arguments.
    """
    if partition_fn is auto_policy:
        module.to("xla")
    if partition_fn is not None:
        for name, each in module.named_modules():
            partition_fn(name, each, device_mesh)
    if input_fn is not None:
        take = _of_three(input_fn, "input_fn")
        module.register_forward_pre_hook(lambda each, inputs: take(each, inputs, device_mesh))
    if output_fn is not None:
        give = _of_three(output_fn, "output_fn")
        module.register_forward_hook(lambda each, inputs, output: give(each, output, device_mesh))
    return module


def _of_three(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    count = len(inspect.signature(function).parameters)
    if count == 2:  # an older form, without the module
        return lambda module, value, mesh: function(value, mesh)
    if count != 3:
        raise ValueError(
            f"{name}: expected a function of the module, a value and the mesh, got one of {count} arguments"
        )
    return function
