"""A sample's arguments, on a device and maybe in a wider dtype."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

#: Entries whose tensor arguments, all but the first, belong on the CPU whatever the device is: torch refuses others.
_HOST_ARGUMENTS = frozenset({"tensor_split"})


_WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}


@dataclasses.dataclass(frozen=True)
class Target:
    """Where a call runs.

    Args:
        wide: floating point and complex tensors, and dtypes named, are of 64 bits each part.
    """

    device: str
    wide: bool = False

    def dtype(self, dtype: torch.dtype) -> torch.dtype:
        """What is there in place of a dtype."""
        return _WIDER.get(dtype, dtype) if self.wide else dtype


CPU = Target("cpu")
#: the reference with hardly any rounding
EXACT = Target("cpu", wide=True)
XLA = Target("xla")


def arguments(entry: Any, sample: Any, target: Target) -> tuple[list[Any], dict[str, Any]]:
    """A `SampleInput`'s positional and keyword arguments, see `place`; a factory is told its device in any case."""
    if entry.name in _HOST_ARGUMENTS:
        host = dataclasses.replace(target, device="cpu")
        return [place(sample.input, target), *place(sample.args, host)], place(sample.kwargs, host)
    args, kwargs = place(([sample.input, *sample.args], sample.kwargs), target)
    if entry.is_factory_function:
        kwargs["device"] = target.device
    return args, kwargs


def place(tree: Any, target: Target) -> Any:
    """Fresh copies of all tensors of a tree on the target's device, which also stands where the CPU was named.

    One tensor that appears twice is one tensor in the copy too.
    """
    copies: dict[int, torch.Tensor] = {}

    def move(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            if id(x) not in copies:
                copy = _copy(x.detach(), target)
                copies[id(x)] = copy.requires_grad_(x.requires_grad) if x.requires_grad else copy
            return copies[id(x)]
        if isinstance(x, torch.device):
            return torch.device(target.device) if x.type == "cpu" else x
        if isinstance(x, torch.dtype):
            return target.dtype(x)
        return target.device if isinstance(x, str) and x == "cpu" else x

    return tree_map(move, tree)


def _copy(x: torch.Tensor, target: Target) -> torch.Tensor:
    """A copy of `x`; one of a view has what lies around it in memory too, which `as_strided` can reach."""
    if x.layout is not torch.strided or x.is_quantized:
        return x.to(target.device, target.dtype(x.dtype), copy=True)
    if x.is_conj():
        return _copy(x.conj(), target).conj()
    if x.is_neg():
        neg_view = torch.ops.aten._neg_view.default
        return neg_view(_copy(neg_view(x), target))
    size = x.untyped_storage().nbytes() // x.element_size()
    if size == x.numel() and x.is_contiguous():
        return x.to(target.device, target.dtype(x.dtype), copy=True)
    memory = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage(), 0, (size,), (1,))
    copy = memory.to(target.device, target.dtype(x.dtype), copy=True)
    return copy.as_strided(x.size(), x.stride(), x.storage_offset())


def differentiable(tree: Any) -> list[torch.Tensor]:
    """The leaves that a gradient is wanted for."""
    found = [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor) and x.requires_grad and x.is_leaf]
    return list({id(x): x for x in found}.values())
