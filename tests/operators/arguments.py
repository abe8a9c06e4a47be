"""A sample's arguments on a device."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

#: Entries whose tensor arguments, all but the first, belong on the CPU whatever the device is: torch refuses others.
_HOST_ARGUMENTS = frozenset({"tensor_split"})


def arguments(entry: Any, sample: Any, device: str) -> tuple[list[Any], dict[str, Any]]:
    """A `SampleInput`'s positional and keyword arguments, see `place`; a factory is told its device in any case."""
    if entry.name in _HOST_ARGUMENTS:
        return [place(sample.input, device), *place(sample.args, "cpu")], place(sample.kwargs, "cpu")
    args, kwargs = place(([sample.input, *sample.args], sample.kwargs), device)
    if entry.is_factory_function:
        kwargs["device"] = device
    return args, kwargs


def place(tree: Any, device: str) -> Any:
    """Fresh copies on `device` of all tensors of a tree, and the device in place of the CPU wherever it is named.

    One tensor that appears twice is one tensor in the copy too.
    """
    copies: dict[int, torch.Tensor] = {}

    def move(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            if id(x) not in copies:
                copy = _copy(x.detach(), device)
                copies[id(x)] = copy.requires_grad_(x.requires_grad) if x.requires_grad else copy
            return copies[id(x)]
        if isinstance(x, torch.device):
            return torch.device(device) if x.type == "cpu" else x
        return device if isinstance(x, str) and x == "cpu" else x

    return tree_map(move, tree)


def _copy(x: torch.Tensor, device: str) -> torch.Tensor:
    """A copy of `x`; one of a view has what lies around it in memory too, which `as_strided` can reach."""
    if x.layout is not torch.strided or x.is_quantized:
        return x.to(device, copy=True)
    if x.is_conj():
        return _copy(x.conj(), device).conj()
    if x.is_neg():
        return torch._neg_view(_copy(torch._neg_view(x), device))
    return _with_memory(x, device)


def _with_memory(x: torch.Tensor, device: str) -> torch.Tensor:
    size = x.untyped_storage().nbytes() // x.element_size()
    if size == x.numel() and x.is_contiguous():
        return x.to(device, copy=True)
    memory = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage(), 0, (size,), (1,))
    return memory.to(device, copy=True).as_strided(x.size(), x.stride(), x.storage_offset())


def differentiable(tree: Any) -> list[torch.Tensor]:
    """The leaves that a gradient is wanted for."""
    found = [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor) and x.requires_grad and x.is_leaf]
    return list({id(x): x for x in found}.values())
