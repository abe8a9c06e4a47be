"""`SpmdFullyShardedDataParallel`: a module whose parameters are cut along the mesh's axis "fsdp" (FSDPv2)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ..distributed.fsdp.wrap import ask
from ..distributed.spmd import Mesh, get_global_mesh, mark_sharding, mark_sharding_with_gradients, unwrap_sharded_tensor

Policy = Callable[..., bool]


class SpmdFullyShardedDataParallel(nn.Module):
    """A module on xla whose parameters, gradients and optimizer states each device has a part of. Give it batches that
    are sharded along "fsdp" in their first dimension; XLA gathers a parameter where it is used, and sums gradients to
    where their part of it is.

    Of each parameter the largest dimension that the axis divides is cut; one that has none stays whole on each device.

    Args:
        module: moved to xla where it is not there; parameters that are sharded already stay as they are.
        mesh: with an axis "fsdp"; by default the global one.
        shard_output: `(output, mesh)`, which shards what the module gives, in place. By default the first dimension of
            a tensor, or of the first one of a tuple, is cut along "fsdp", where it can be.
        auto_wrap_policy: `policy(module, recurse, nonwrapped_numel)`, of modules within: to be looked into, or wrapped
            themselves; those of `torch.distributed.fsdp.wrap` and of `distributed.fsdp.wrap` do.
        auto_wrapper_callable: what wraps them; by default this class with the same arguments.
        extra_data_axis: another axis of the mesh among whose devices the batch is divided too: the parameters have
            copies along it, and outputs are cut along both.

    Raises:
        ValueError: there is no mesh, or the mesh has no such axis.
        RuntimeError: the module is wrapped already, or has no `forward`.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        mesh: Mesh | None = None,
        shard_output: Callable[[Any, Mesh], None] | None = None,
        auto_wrap_policy: Policy | None = None,
        auto_wrapper_callable: Callable[..., nn.Module] | None = None,
        extra_data_axis: str | None = None,
    ):
        if isinstance(module, SpmdFullyShardedDataParallel):
            raise RuntimeError(
                "Cannot wrap a module that is already wrapped by SpmdFullyShardedDataParallel: wrap the modules within "
                "first and then the one around them"
            )
        if type(module).forward is nn.Module.forward:  # `ModuleList` and its like
            raise RuntimeError(f"{type(module).__name__} has no forward of its own, wrap the modules in it one by one")
        mesh = get_global_mesh() if mesh is None else mesh
        if mesh is None:
            raise ValueError("Cannot find a mesh: pass mesh=..., or call spmd.set_global_mesh(mesh)")
        if "fsdp" not in (mesh.axis_names or ()):
            raise ValueError(f"The mesh must have an axis named 'fsdp', its axes are {mesh.axis_names}")
        if extra_data_axis is not None and extra_data_axis not in (mesh.axis_names or ()):
            raise ValueError(f"The provided {extra_data_axis} axis is not in the mesh. Its axes are {mesh.axis_names}")
        super().__init__()
        if auto_wrap_policy is not None:
            wrap = auto_wrapper_callable or type(self)
            options = {"mesh": mesh, "shard_output": shard_output, "extra_data_axis": extra_data_axis}
            _wrap_children(module, auto_wrap_policy, lambda child: wrap(child, **options))
        self._orig_module = module.to("xla")
        self._mesh = mesh
        self._extra_data_axis = extra_data_axis
        self._shard_output = shard_output
        for parameter in module.parameters():
            _shard_parameter(parameter, mesh)

    @property
    def module(self) -> nn.Module:
        """The wrapped module."""
        return self._orig_module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module gives, sharded."""
        output = self.module(*args, **kwargs)
        if self._shard_output is None:
            return self._sharded(output)
        self._shard_output(output, self._mesh)
        return output

    def _sharded(self, output: Any) -> Any:
        first = next(iter(output), None) if isinstance(output, tuple) else None
        if isinstance(output, tuple) and isinstance(first, torch.Tensor):
            if len(output) > 1:
                warnings.warn(
                    "The output is a tuple, of which the first tensor alone is sharded: pass shard_output to shard "
                    "the others",
                    RuntimeWarning,
                    stacklevel=3,
                )
            return (self._sharded(first), *output[1:])
        if not isinstance(output, torch.Tensor):
            raise RuntimeError(f"The output type is not supported: {type(output)}. Pass shard_output=(output, mesh)")
        axes = ("fsdp",) if self._extra_data_axis is None else (self._extra_data_axis, "fsdp")
        if not output.dim() or output.shape[0] % _size(self._mesh, axes):
            return output
        return mark_sharding_with_gradients(output, self._mesh, (axes, *[None] * (output.dim() - 1)))

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._orig_module, name)

    def __getitem__(self, key: int) -> Any:
        return self.module[key]  # type: ignore[index]


def _size(mesh: Mesh, axes: Sequence[str]) -> int:
    found = 1
    for axis in axes:
        found *= mesh.shape()[axis]
    return found


def _shard_parameter(parameter: nn.Parameter, mesh: Mesh) -> None:
    from ...tensor import sharding

    if sharding.of(unwrap_sharded_tensor(parameter)) is not None:
        return
    size = _size(mesh, ["fsdp"])
    divisible = [dim for dim, length in enumerate(parameter.shape) if length and length % size == 0]
    largest = max(divisible, key=lambda dim: parameter.shape[dim], default=None)
    cuts = ["fsdp" if dim == largest else None for dim in range(parameter.dim())]
    mark_sharding(parameter, mesh, cuts)


def _wrap_children(module: nn.Module, policy: Policy, wrap: Callable[[nn.Module], nn.Module]) -> int:
    """Wraps the modules below one that a policy asks for, the innermost first.

    Returns:
        how many elements the parameters have that were wrapped.
    """
    wrapped = 0
    for name, child in list(module.named_children()):
        if isinstance(child, SpmdFullyShardedDataParallel):
            continue
        total = sum(parameter.numel() for parameter in child.parameters())
        if not ask(policy, child, True, total):
            continue
        inside = _wrap_children(child, policy, wrap)
        wrapped += inside
        if ask(policy, child, False, total - inside):
            setattr(module, name, wrap(child))
            wrapped += total - inside
    return wrapped
