"""The parts of a sharded tensor, one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import torch

from ....dispatcher import mark_sharding
from ....execution import assign, transfer
from ....ir import dtypes
from ....platform import hardware, xla_devices
from ....tensor import host_arrays
from ....tensor.xla_tensor import from_array, unwrap
from .xla_shard import XLAShard


def of(tensor: torch.Tensor) -> list[XLAShard]:
    """What each device of this process has of a tensor, in the order of their numbers."""
    kind = hardware.kind(xla_devices.get(tensor.device))
    array = mark_sharding.array_of(tensor.detach())
    numbers = {device: number for number, device in enumerate(xla_devices.all_physical_devices())}
    return [
        XLAShard(
            download(part, tensor.dtype),
            _indices(part.index, array.shape),
            f"{kind}:{numbers[part.device]}",
            part.replica_id,
        )
        for part in sorted(array.addressable_shards, key=lambda part: numbers[part.device])
    ]


def parts(tensor: torch.Tensor) -> dict[tuple[int, ...], Any]:
    """The parts that a tensor is in, one of each, as jax's `Shard`, by the index of their first element; of several
    copies the first.
    """
    found: dict[tuple[int, ...], Any] = {}
    for part in sorted(mark_sharding.array_of(tensor.detach()).addressable_shards, key=lambda part: part.replica_id):
        found.setdefault(_start(part), part)
    return found


def download(part: Any, dtype: torch.dtype) -> torch.Tensor:
    """A part's data on the CPU.

    Args:
        dtype: the tensor's, where devices store another one.
    """
    return transfer.download(part.data).to(dtype)


def _start(part: Any) -> tuple[int, ...]:
    return tuple(along.start or 0 for along in part.index)


def _indices(index: tuple[slice, ...], shape: tuple[int, ...]) -> Any:
    """Slices from a start to an end; `Ellipsis` for all of a tensor."""
    found = [slice(*part.indices(size)) for part, size in zip(index, shape, strict=True)]
    whole = all(part.start == 0 and part.stop == size for part, size in zip(found, shape, strict=True))
    return Ellipsis if whole else found


def load(tensor: torch.Tensor, shards: Sequence[XLAShard]) -> None:
    """Writes the data of all the parts that this process has of a tensor.

    Raises:
        ValueError: these are not its parts.
    """
    known = mark_sharding.array_of(tensor.detach())
    places = {part.device: part for part in known.addressable_shards}
    devices = sorted(places, key=lambda device: device.id)
    expected = [tuple(places[device].data.shape) for device in devices]
    if [tuple(shard.data.shape) for shard in shards] != expected:
        raise ValueError(
            f"load_local_shards_: the tensor of shape {list(tensor.shape)} has parts of the shapes {expected}, one for "
            f"each device of this process, got {[tuple(shard.data.shape) for shard in shards]}"
        )
    _write(tensor, known, {device: shard.data for device, shard in zip(devices, shards, strict=True)})


def write(tensor: torch.Tensor, data: Mapping[tuple[int, ...], torch.Tensor]) -> None:
    """Writes the data of all the parts of a tensor, as `parts` names them, to each device that has one."""
    known = mark_sharding.array_of(tensor.detach())
    _write(tensor, known, {part.device: data[_start(part)] for part in known.addressable_shards})


def _write(tensor: torch.Tensor, known: jax.Array, data: Mapping[Any, torch.Tensor]) -> None:
    with dtypes.x64():
        arrays = [
            jax.device_put(host_arrays.to_numpy(each.to(tensor.dtype).contiguous().clone()), device)
            for device, each in data.items()
        ]
        array = jax.make_array_from_single_device_arrays(known.shape, known.sharding, arrays)
    inner = unwrap(tensor.detach())
    with torch.no_grad():
        assign.write([tensor], [from_array(array, inner.spec).handle], [inner.spec])
