"""What modules return, in containers that jax knows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch


def plain(name: str, value: Any, device: torch.device, place: str = "") -> Any:
    """The value with its tensors on one device, numbers as tensors, and dicts in place of other mappings and of
    dataclasses, as transformers' outputs are.

    Args:
        name: of what returns it, for errors.
        place: where in the result it stands, as Python would write it.

    Raises:
        TypeError: it holds something else.
    """
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if value is None:
        return None
    if isinstance(value, bool | int | float | complex):
        return torch.tensor(value, device=device)
    if isinstance(value, Mapping):
        return {key: plain(name, each, device, f"{place}[{key!r}]") for key, each in value.items()}
    if isinstance(value, tuple | list):
        made = [plain(name, each, device, f"{place}[{number}]") for number, each in enumerate(value)]
        if hasattr(value, "_fields"):
            return type(value)(*made)
        return made if isinstance(value, list) else tuple(made)
    if dataclasses.is_dataclass(value):
        fields = [field.name for field in dataclasses.fields(value)]
        return {each: plain(name, getattr(value, each), device, f"{place}.{each}") for each in fields}
    where = f" as its result{place}" if place else ""
    raise TypeError(
        f"{name} returns {type(value).__name__}{where}, in which jax finds no arrays: have it return the tensors in it "
        "(of transformers' models: use_cache=False)"
    )
