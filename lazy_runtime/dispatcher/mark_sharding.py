"""`mark_sharding` and its like, as far as tensors are concerned (`sharding.py` has the programs' side)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..common.skipped_by_dynamo import skip
from ..compat.jax_import import jax
from ..execution import execute
from ..ir import grid
from ..ops import registry
from ..recording import dispatch
from ..tensor import sharding
from ..tensor.xla_tensor import XLATensor, unwrap


@skip
def mark(tensor: torch.Tensor, wanted: jax.sharding.NamedSharding) -> None:
    """Has a tensor lie so from now on: its data is moved at once, a pending result in the program that computes it.

    Raises:
        RuntimeError: it has been marked with another sharding.
    """
    known = sharding.marked(tensor)
    if known is not None and known != wanted and not known.is_fully_replicated:
        raise RuntimeError(
            f"mark_sharding: the tensor of shape {list(tensor.shape)} is sharded as {sharding.text(tensor)} already. "
            "Existing annotation must be cleared first (clear_sharding)"
        )
    _bring(unwrap(tensor), wanted)
    sharding.set_mark(tensor, wanted)


@skip
def annotate(tensor: torch.Tensor, wanted: jax.sharding.NamedSharding) -> None:
    """Has those who read a tensor from now on see it so, without a mark: what is written to it lies as XLA likes."""
    _bring(unwrap(tensor), wanted)


@skip
def unmark(tensor: torch.Tensor) -> None:
    """Has a tensor lie on all devices in full, and lets XLA choose for what is written to it."""
    sharding.set_mark(tensor, None)
    inner = unwrap(tensor)
    assert inner.spec.device.grid is not None
    _bring(inner, grid.sharding(inner.spec.device.grid, []))


def array_of(tensor: torch.Tensor) -> jax.Array:
    """A tensor's buffers on the grid, after running what is pending if it has none yet."""
    inner = unwrap(tensor)
    execute.array_of(inner.handle.value, inner.spec.device)
    return sharding.lay(inner.handle.value, inner.spec.device)[0]


def _bring(tensor: XLATensor, wanted: jax.sharding.NamedSharding) -> None:
    value, device = tensor.handle.value, tensor.spec.device
    with device.lock:
        if value.array is None and not execute.eager:
            _constrain(tensor, wanted)
            return
    execute.array_of(value, device)
    sharding.lay(value, device, sharding.stored(wanted, tensor.spec.shape))


def _constrain(tensor: XLATensor, wanted: jax.sharding.NamedSharding) -> None:
    """Puts an operator between a pending result and all who read it from now on. They hold the same handle as before:
    these are the same numbers, so nobody is told of a write.
    """
    handle, value = tensor.handle, tensor.handle.value
    made = dispatch.record(_operator(), (tensor, *_operands(wanted, tensor.dim())), {})
    pending, result = value.node, made.handle.value
    assert pending is not None
    assert result.node is not None
    pending.outputs = [None if owner is value.owner else owner for owner in pending.outputs]
    result.node.outputs = [value.owner]
    handle.value, result.owner, value.owner = result, value.owner, None


def _operator() -> registry.Operator:
    return registry.table[torch.ops.lazy_runtime.shard.default]


def _operands(wanted: jax.sharding.NamedSharding, dims: int) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """The sharding as the operator has it, with the grid for a mesh."""
    mesh = wanted.mesh
    devices: Any = mesh.devices
    numbers = {device.id: number for number, device in enumerate(sorted(devices.flat, key=lambda each: each.id))}
    names = [grid.names(entry) for entry in (*wanted.spec, *[None] * (dims - len(wanted.spec)))]
    cuts = [[mesh.axis_names.index(name) for name in along] for along in names]
    return [numbers[device.id] for device in devices.flat], list(devices.shape), sharding.encode(cuts)
