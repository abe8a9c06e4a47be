"""How tensors lie on the devices that xla:0 stands for (SPMD), and what programs are told of it.

A program is compiled for the shardings of its leaves' buffers, which are part of its key, and for those that somebody
asked for of its results; the rest is XLA's to choose. What nobody has sharded has a copy on every device. So all
programs run on all devices, and there is no tensor on one of them that another program would have to fetch.

A tensor that was marked keeps its sharding whatever is written to it, as PyTorch/XLA's do: what it shows is brought
into that order in the program that computes it, or before the next one that reads it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax.sharding import NamedSharding, Sharding
from torch.utils.weak import WeakTensorKeyDictionary

from ..compat.jaxlib import device_assignment_of, hlo_sharding_of
from ..compat.torch import from_functional_tensor as _inner
from ..compat.torch import is_functional_tensor
from ..ir import dtypes, grid
from ..ir.graph import Call, Graph, Handle, Value
from ..platform.xla_devices import Device
from ..processes import multihost_arrays
from .xla_tensor import unwrap

_SHARD = "lazy_runtime::shard"  # the operator in `ops/collective/shard.py`

_marks = WeakTensorKeyDictionary()  # tensor → its sharding, and the shape that this is for
_lock = threading.Lock()
_meshes: set[tuple[Any, ...]] = set()  # those that have been used


# ---- meshes


def resolve(device: Device, ids: Sequence[int], shape: Sequence[int], cuts: Sequence[Sequence[int]]) -> NamedSharding:
    """The sharding over the device's grid.

    Args:
        ids: numbers of the mesh's devices, row by row.
        shape: of the mesh.
        cuts: for each dimension of the tensor, the axes of the mesh along which it is cut.

    Raises:
        ValueError: the mesh does not consist of all the devices, or lies across another one that is in use.
    """
    assert device.grid is not None
    count = device.grid.devices.size
    whose = "all processes together have" if device.spans_processes else "this process has"
    if sorted(ids) != list(range(count)):
        strange = sorted(set(ids) - set(range(count)))
        raise ValueError(
            f"a mesh of the devices {list(ids)}: "
            + (f"there is no device {strange[0]}, {whose}" if strange else "a mesh takes all devices, which are")
            + f" {count} (0 to {count - 1})"
        )
    with _lock:
        axes = _axes(device, tuple(ids), tuple(shape))
    return grid.sharding(device.grid, [tuple(name for axis in along for name in axes[axis]) for along in cuts])


def _axes(device: Device, ids: tuple[int, ...], shape: tuple[int, ...]) -> list[tuple[str, ...]]:
    assert device.grid is not None
    order = {each: position for position, each in enumerate(device.grid.devices.flat)}
    devices = sorted(device.grid.devices.flat, key=lambda each: each.id)
    positions = np.array([order[devices[number]] for number in ids]).reshape(shape)
    found = grid.axes(device.grid, positions)
    if found is None and not _meshes:  # the first one may have any shape and order
        device.stand_for(grid.of([devices[number] for number in ids], shape))
        found = grid.axes(device.grid, np.arange(len(ids)).reshape(shape))
    if found is None:
        others = ", ".join(f"{'x'.join(map(str, other))} of {list(numbers)}" for numbers, other in sorted(_meshes))
        raise ValueError(
            f"the mesh {'x'.join(map(str, shape))} of the devices {list(ids)} cannot be used beside {others}: the axes "
            "of one have to be made of those of the other"
        )
    _meshes.add((ids, shape))
    return found


def parts(wanted: NamedSharding, dims: int) -> list[int]:
    """Into how many parts a sharding cuts each of so many dimensions."""
    entries = [*wanted.spec, *[None] * (dims - len(wanted.spec))]
    return [math.prod(wanted.mesh.shape[name] for name in grid.names(entry)) for entry in entries]


def stored(wanted: NamedSharding, shape: Sequence[int]) -> NamedSharding:
    """How a buffer lies that is to be sharded so. jax has buffers of equal parts alone: a dimension that the devices do
    not share equally is not cut, and each of them has all of it.
    """
    entries = [
        entry if size % count == 0 else None
        for entry, size, count in zip(wanted.spec, shape, parts(wanted, len(shape)), strict=False)
    ]
    mesh: Any = wanted.mesh
    return grid.sharding(mesh, [grid.names(entry) for entry in entries])


def encode(cuts: Sequence[Sequence[int]]) -> list[int]:
    """The cuts as the operator `lazy_runtime::shard` takes them.

    Args:
        cuts: for each dimension of the tensor, axes of the mesh.
    """
    encoded = []
    for along in cuts:
        encoded.append(len(along))
        encoded.extend(along)
    return encoded


def decode(encoded: Sequence[int]) -> list[Sequence[int]]:
    """Undoes `encode`."""
    cuts = []
    start = 0
    while start < len(encoded):
        end = start + 1 + encoded[start]
        cuts.append(encoded[start + 1 : end])
        start = end
    return cuts


# ---- tensors


def set_mark(tensor: torch.Tensor, wanted: NamedSharding | None) -> None:
    """Notes how a tensor is to lie; None for as XLA likes (`mark_sharding.py`)."""
    with _lock:
        if wanted is None:
            _marks.pop(tensor, None)
        else:
            _marks[tensor] = wanted, tuple(tensor.shape)


def marked(tensor: torch.Tensor) -> NamedSharding | None:
    """What a tensor was marked with, if it still has the shape that it had then."""
    found: Any = _marks.get(tensor)
    return found[0] if found is not None and found[1] == tuple(tensor.shape) else None


def of(tensor: torch.Tensor) -> Sharding | None:
    """The sharding that a tensor was marked with or, else, that its data has; None if it is on all devices in full
    because nobody said otherwise, or pending.
    """
    found = marked(tensor)
    if found is not None:
        return found
    inner = unwrap(tensor)
    value, device = inner.handle.value, inner.spec.device
    if device.grid is None:
        return None
    if value.node is not None and value.node.call.name == _SHARD and value.node.call.meaning is not None:
        _, ids, shape, cuts = value.node.call.meaning[1]
        return resolve(device, ids, shape, decode(cuts))
    array = value.array
    if array is None:
        return None
    lies = grid.normal(device.grid, array.sharding)
    return None if lies is None or lies.is_fully_replicated else lies


# ---- programs


def place(graph: Graph, leaves: Sequence[Value], live: Sequence[Handle]) -> Graph:
    """The graph with the shardings of its leaves and of the results that are marked."""
    device = graph.device
    if graph.is_collective:
        raise NotImplementedError(
            "a collective of ranks (torch.distributed over xla) where xla:0 stands for the devices of all of them "
            "(use_spmd): XLA puts in the collectives that the shardings take. Leave it out, or do not call use_spmd"
        )
    wanted = _of_handles(device)
    results: list[Any] = [wanted.get(id(handle)) for handle in live]
    placements = [lay(value, device)[1] for value in leaves]
    says_where = placements or graph.floats or graph.ints or any(results) or any(map(_is_shard, graph.calls))
    if not says_where:  # on which devices the program runs
        results = [device.sharding] * len(results)
    return graph._replace(placements=tuple(placements), results=tuple(results))


def _is_shard(call: Call) -> bool:
    return call.name == _SHARD or (call.nested is not None and any(map(_is_shard, call.nested.graph.calls)))


def _of_handles(device: Device) -> dict[int, NamedSharding]:
    """What handles of marked tensors are to look like. Those that have their data, written there by a copy, are brought
    into order.
    """
    with _lock:
        all_marked = list(_marks.items())
    found: dict[int, NamedSharding] = {}
    for tensor, (wanted, shape) in all_marked:
        if not is_functional_tensor(tensor):  # it has been moved from xla in place
            continue
        inner = _inner(tensor)  # not `unwrap`, which may record operators
        if inner.spec.device is device and inner.spec.shape == shape:
            value = inner.handle.value
            wanted = stored(wanted, shape)
            found[id(inner.handle)] = wanted
            if value.array is not None and not value.array.is_deleted():
                lay(value, device, wanted)
    return found


def lay(value: Value, device: Device, wanted: Sharding | None = None) -> tuple[jax.Array, Sharding]:
    """A value's buffer and how it lies, after bringing it onto the grid.

    Args:
        wanted: how it has to lie; None for in any way.
    """
    assert value.array is not None
    assert device.grid is not None
    lies = grid.normal(device.grid, value.array.sharding)
    if lies is None or (wanted is not None and lies != wanted):
        lies = wanted or device.sharding
        with dtypes.x64():
            value.array = multihost_arrays.moved(value.array, lies)
    return value.array, lies


# ---- what people read


def text(tensor: torch.Tensor) -> str:
    """The sharding as XLA writes it: `{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}`; empty if nobody has sharded
    the tensor.
    """
    found = of(tensor)
    return "" if found is None else hlo_text(found, tensor.dim())


def hlo_text(found: Sharding, dims: int) -> str:
    """A sharding of a tensor with so many dimensions, as XLA writes it with each device's number."""
    hlo: Any = hlo_sharding_of(found)(dims)
    if hlo.is_replicated():
        return "{replicated}"
    order = sorted(device_assignment_of(found), key=lambda each: each.id)
    devices = [order.index(device_assignment_of(found)[number]) for number in hlo.tile_assignment_devices()]
    tiles = ",".join(map(str, hlo.tile_assignment_dimensions()))
    rest = " last_tile_dim_replicate" if hlo.replicate_on_last_tile_dim() else ""
    return f"{{devices=[{tiles}]{','.join(map(str, devices))}{rest}}}"
