"""Tensors in what modules take and give."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

__all__ = ["apply_to_tensors", "collect_tensors"]


def apply_to_tensors(fn: Callable[[torch.Tensor], Any], container: Any) -> Any:
    """What is given, with `fn` of each tensor in its place: in lists, tuples, named ones too, dicts, sets, dataclasses
    and packed sequences.
    """
    if isinstance(container, torch.Tensor):
        return fn(container)
    if isinstance(container, PackedSequence):
        return PackedSequence(*(apply_to_tensors(fn, each) for each in container))
    if dataclasses.is_dataclass(container) and not isinstance(container, type):
        changed = {
            field.name: apply_to_tensors(fn, getattr(container, field.name))
            for field in dataclasses.fields(container)
            if field.init
        }
        return dataclasses.replace(container, **changed)
    if isinstance(container, Mapping):
        pairs = ((key, apply_to_tensors(fn, each)) for key, each in container.items())
        kind: Any = type(container)
        try:
            return kind(pairs)
        except TypeError:  # one that is made in another way
            return OrderedDict(pairs)
    if isinstance(container, tuple) and hasattr(container, "_fields"):
        return type(container)(*(apply_to_tensors(fn, each) for each in container))
    if isinstance(container, list | tuple | set):
        return type(container)(apply_to_tensors(fn, each) for each in container)
    return container


def collect_tensors(container: Any) -> list[torch.Tensor]:
    """The tensors in what is given, in order."""
    found: list[torch.Tensor] = []
    apply_to_tensors(lambda tensor: found.append(tensor) or tensor, container)
    return found
