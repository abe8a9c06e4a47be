"""Tensors in a nest of containers and objects, converted together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..utils import utils


class ToXlaTensorArena:
    """Collects the values in a nest that are to be converted, converts them in one call, and puts them in place.

    Args:
        convert: list of values → list of what takes their places.
        select: whether a value is one to convert.
    """

    def __init__(self, convert: Callable[[list[Any]], list[Any]], select: Callable[[Any], bool]):
        self._convert = convert
        self._select = select

    def transform(self, inputs: Any) -> Any:
        """`inputs` with its values converted. Containers are made anew; a value that occurs twice is converted once."""
        found: dict[int, Any] = {}
        utils.for_each_instance(inputs, self._select, lambda value: found.setdefault(id(value), value))
        converted = dict(zip(found, self._convert(list(found.values())), strict=True))
        return utils.for_each_instance_rewrite(inputs, self._select, lambda value: converted[id(value)])


def to_cpu(data: Any) -> Any:
    """`data` with its xla tensors on the CPU: one execution, however many there are. Those that share memory share it
    there.
    """

    def convert(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        from ...dispatcher import storage

        return [_leaf_like(tensor, host) for tensor, host in zip(tensors, storage.to_cpu(tensors), strict=True)]

    return ToXlaTensorArena(convert, _is_on("xla")).transform(data)


def to_device(data: Any, device: torch.device, input_sharding: Any = None) -> Any:
    """`data` with its CPU tensors on `device`.

    Args:
        input_sharding: a `distributed.spmd.ShardingSpec` for those that have as many dimensions, or, where `data` is a
            dictionary, one for each of its keys; None for no sharding.

    Raises:
        KeyError: there is not one for each key.
        ValueError: `data` has no keys, or one is not for a tensor's sizes.
    """
    if isinstance(input_sharding, dict):
        if not isinstance(data, dict) or set(data) != set(input_sharding):
            found = sorted(map(str, data)) if isinstance(data, dict) else type(data).__name__
            kind = KeyError if isinstance(data, dict) else ValueError
            raise kind(
                f"input_sharding has the keys {sorted(map(str, input_sharding))}: expected a batch with the same ones, "
                f"got {found}"
            )
        return type(data)({key: to_device(value, device, input_sharding[key]) for key, value in data.items()})

    def convert(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return [_moved(tensor, device, input_sharding) for tensor in tensors]

    return ToXlaTensorArena(convert, _is_on("cpu")).transform(data)


def require_spmd(input_sharding: Any) -> None:
    """Checks that an input sharding has a grid of devices.

    Raises:
        RuntimeError: there is an `input_sharding` where one device stands for one.
    """
    from .. import runtime as xr

    if input_sharding is not None and not xr.is_spmd():
        raise RuntimeError("input_sharding: call runtime.use_spmd() at the beginning of the program")


def _is_on(device_type: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, torch.Tensor) and value.device.type == device_type


def _moved(tensor: torch.Tensor, device: torch.device, input_sharding: Any = None) -> torch.Tensor:
    """A leaf as the original is: data has no history."""
    if input_sharding is None:
        moved = tensor.detach().to(device)
    else:
        from ...execution import transfer
        from ...platform import xla_devices
        from ...tensor import sharding
        from ...tensor.xla_tensor import to_functional

        shape = input_sharding.whole_shape(tensor)
        wanted = input_sharding.sharding(tensor, shape)
        lies = None if wanted is None else sharding.stored(wanted, shape or tensor.shape)
        moved = to_functional(transfer.to_device(tensor.detach(), xla_devices.get(device), lies, shape))
        if lies != wanted:
            sharding.set_mark(moved, wanted)
    return _leaf_like(tensor, moved)


def _leaf_like(tensor: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(moved, tensor.requires_grad)
    return moved.requires_grad_(tensor.requires_grad)
