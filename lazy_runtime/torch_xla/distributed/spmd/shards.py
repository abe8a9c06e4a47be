"""The parts of a sharded tensor, one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ....compat.jax_import import jax
from ....dispatcher import mark_sharding
from ....execution import assign, transfer
from ....ir import dtypes
from ....platform import hardware, xla_devices
from ....tensor import host_arrays, sharding
from ....tensor.xla_tensor import from_array, unwrap
from .xla_shard import XLAShard


def of(tensor: torch.Tensor) -> list[XLAShard]:
    """What each device of this process has of a tensor, in the order of their numbers, by the sharding that it was
    marked with.
    """
    kind = hardware.kind(xla_devices.get(tensor.device))
    array = mark_sharding.array_of(tensor.detach())
    numbers = {device: number for number, device in enumerate(xla_devices.all_physical_devices())}
    tiles = _tiles(tensor, array)
    return [
        XLAShard(
            _padded(_within(part, tiles[part.device]), tiles[part.device].size).to(tensor.dtype),
            _indices(tiles[part.device].elements, array.shape),
            f"{kind}:{numbers[part.device]}",
            tiles[part.device].replica,
        )
        for part in sorted(array.addressable_shards, key=lambda part: numbers[part.device])
    ]


class _Tile(NamedTuple):
    """What a device has by a tensor's sharding.

    Attributes:
        elements: which it is, of each dimension.
        size: of the tile, which may be larger: all are equal.
        replica: the number of this copy.
    """

    elements: tuple[slice, ...]
    size: tuple[int, ...]
    replica: int


def _tiles(tensor: torch.Tensor, array: jax.Array) -> dict[Any, _Tile]:
    wanted: Any = sharding.marked(tensor) or array.sharding
    shape = array.shape
    counts = sharding.parts(wanted, len(shape)) if isinstance(wanted, jax.sharding.NamedSharding) else [1] * len(shape)
    whole = tuple(-(-size // count) * count for size, count in zip(shape, counts, strict=True))
    size = tuple(wanted.shard_shape(whole))
    found: dict[Any, _Tile] = {}
    copies: Counter[tuple[int, ...]] = Counter()
    for device, index in wanted.devices_indices_map(whole).items():
        ranges = [along.indices(full) for along, full in zip(index, whole, strict=True)]
        start = tuple(first for first, _, _ in ranges)
        clipped = [slice(min(first, end), min(last, end)) for (first, last, _), end in zip(ranges, shape, strict=True)]
        found[device] = _Tile(tuple(clipped), size, copies[start])
        copies[start] += 1
    return found


def _within(part: Any, tile: _Tile) -> torch.Tensor:
    """A tile's elements, of the buffer that has them: it is the tile, or has more where tiles are not equal."""
    starts = _start(part)
    own = [slice(along.start - first, along.stop - first) for along, first in zip(tile.elements, starts, strict=True)]
    return transfer.download(part.data)[tuple(own)]


def _padded(data: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    if tuple(data.shape) == tuple(size):
        return data
    found = data.new_zeros(size)
    found[tuple(slice(0, length) for length in data.shape)] = data
    return found


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
        RuntimeError: these are not its parts.
        NotImplementedError: the parts are not equal, and other processes have some of them.
    """
    known = mark_sharding.array_of(tensor.detach())
    tiles = _tiles(tensor, known)
    devices = sorted((part.device for part in known.addressable_shards), key=lambda device: device.id)
    expected = [tiles[device].size for device in devices]
    if [tuple(shard.data.shape) for shard in shards] != expected:
        raise RuntimeError(
            f"load_local_shards_: the tensor of shape {list(tensor.shape)} has parts of the shapes {expected}, one for "
            f"each device of this process, got {[tuple(shard.data.shape) for shard in shards]}"
        )
    if expected == [tuple(part.data.shape) for part in known.addressable_shards]:
        _write(tensor, known, {device: shard.data for device, shard in zip(devices, shards, strict=True)})
        return
    if not known.is_fully_addressable:
        raise NotImplementedError(
            f"load_local_shards_: the devices do not share the tensor of shape {list(tensor.shape)} equally, and other "
            "processes have parts of it: write the whole tensor (`copy_`) in each process"
        )
    whole = torch.zeros(known.shape, dtype=tensor.dtype)
    for device, shard in zip(devices, shards, strict=True):
        index = tiles[device].elements
        whole[index] = shard.data[tuple(slice(0, along.stop - along.start) for along in index)].to(tensor.dtype)
    _write(tensor, known, {part.device: whole[part.index] for part in known.addressable_shards})


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
