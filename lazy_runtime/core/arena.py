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
    """`data` with its xla tensors on the CPU: one execution, however many there are."""

    def convert(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return [_moved(tensor, torch.device("cpu")) for tensor in tensors]

    return ToXlaTensorArena(convert, _is_on("xla")).transform(data)


def to_device(data: Any, device: torch.device) -> Any:
    """`data` with its CPU tensors on `device`."""

    def convert(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return [_moved(tensor, device) for tensor in tensors]

    return ToXlaTensorArena(convert, _is_on("cpu")).transform(data)


def _is_on(device_type: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, torch.Tensor) and value.device.type == device_type


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A leaf as the original is: data has no history."""
    moved = tensor.detach().to(device)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(moved, tensor.requires_grad)
    return moved.requires_grad_(tensor.requires_grad)
