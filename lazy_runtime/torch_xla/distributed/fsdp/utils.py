"""What FSDP is used with: checkpointed modules, linear layers, and collectives that do nothing, to look at costs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import torch
from torch import nn

from ... import runtime as xr
from ...core import collectives
from ...utils.checkpoint import checkpoint
from ..spmd.linear import XLAPatchedLinear

__all__ = [
    "BucketizedReduceScatter",
    "DummyReduceScatter",
    "XLAPatchedLinear",
    "apply_xla_patch_to_nn_linear",
    "checkpoint_module",
    "dummy_all_gather",
    "dummy_all_reduce",
]

Groups = Sequence[Sequence[int]] | None


def checkpoint_module(module: nn.Module) -> nn.Module:
    """Has a module compute its forward again in the backward pass, instead of keeping what it computed
    (`utils.checkpoint`). Without an input that requires a gradient it keeps it all the same.

    Args:
        module: changed in place, and returned. Wrap it by FSDP before or afterwards.

    Raises:
        TypeError: it is no module.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"checkpoint_module: expected a module, got {type(module).__name__}")
    original = module.__dict__["_xla_checkpointed_forward_original"] = module.forward

    @functools.wraps(original)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        def call(count: int, names: Sequence[str], *given: Any) -> Any:
            named = dict(zip(names, given[count:], strict=True))
            return self._xla_checkpointed_forward_original(*given[:count], **named)  # type: ignore[operator]

        given = (*args, *kwargs.values())
        if not any(isinstance(each, torch.Tensor) and each.requires_grad for each in given):
            return self._xla_checkpointed_forward_original(*args, **kwargs)  # type: ignore[operator]
        return checkpoint(call, len(args), tuple(kwargs), *given)

    module.forward = MethodType(forward, module)
    return module


def unwrap_checkpoint(module: nn.Module) -> bool:
    """Undoes `checkpoint_module`; whether it had been called."""
    original = module.__dict__.pop("_xla_checkpointed_forward_original", None)
    if original is None:
        return False
    del module.forward
    if module.forward != original:
        module.forward = original
    return True


def _patched(self: nn.Linear, input: torch.Tensor) -> torch.Tensor:
    return XLAPatchedLinear.apply(input, self.weight, self.bias)  # type: ignore[return-value]


def apply_xla_patch_to_nn_linear(module: nn.Module, patched_function: Callable[..., Any] = _patched) -> nn.Module:
    """Has the linear layers within a module, and itself if it is one, call `XLAPatchedLinear`.

    Args:
        module: changed in place, and returned. Layers with a forward of their own stay as they are.
        patched_function: `(layer, input)`, in place of it.
    """
    for each in module.modules():
        if not isinstance(each, nn.Linear):
            continue
        for name in ("forward", "_xla_checkpointed_forward_original"):
            if getattr(getattr(each, name, None), "__func__", None) is nn.Linear.forward:
                setattr(each, name, MethodType(patched_function, each))
    return module


def dummy_all_gather(value: torch.Tensor, dim: int = 0, groups: Groups = None) -> torch.Tensor:
    """What `xm.all_gather` gives in shape and dtype, of copies of the rank's own tensor, without communication."""
    times = [1] * value.dim()
    times[dim] = xr.world_size() if not groups else len(groups[0])
    return value.repeat(times)


def dummy_all_reduce(
    reduce_type: str, inputs: torch.Tensor | list[torch.Tensor], scale: float = 1.0, groups: Groups = None
) -> Any:
    """What `xm.all_reduce` gives in shape and dtype, times `scale`, without communication; of a list in place."""
    if isinstance(inputs, torch.Tensor):
        return inputs * scale
    return [each.mul_(scale) for each in inputs]


class DummyReduceScatter:
    """`BucketizedReduceScatter` without communication: the rank's part of its own tensor.

    Args:
        shard_count: how many ranks share a tensor.

    Attributes:
        scale: what the parts would be multiplied with.
    """

    def __init__(self, shard_count: int):
        self.shard_count = shard_count
        self.scale = 1.0

    def __call__(self, input: torch.Tensor, callback: Callable[[torch.Tensor], None]) -> None:
        """Calls `callback` with the part, along the first dimension."""
        callback(input.chunk(self.shard_count)[xr.global_ordinal() % self.shard_count])

    def flush(self) -> None:
        """There is nothing to wait for."""


class BucketizedReduceScatter:
    """Sums of tensors over the ranks, each rank having its part of them, of many tensors in one collective.

    Args:
        bucket_size_mb: tensors of so many megabytes are summed together; 0 for each alone.
        shard_count: how many ranks share a tensor.
        groups: of ranks, see `xm.all_reduce`.
        pin_layout: accepted for PyTorch/XLA's sake.

    Attributes:
        scale: what the sums are multiplied with.
    """

    def __init__(self, bucket_size_mb: int, shard_count: int, groups: Groups = None, pin_layout: bool = True):
        self.bucket_size_bytes = bucket_size_mb * 2**20
        self.shard_count, self.groups, self.scale = shard_count, groups, 1.0
        self._bucket: list[tuple[torch.Tensor, Callable[[torch.Tensor], None]]] = []
        self._held = 0

    def __call__(self, input: torch.Tensor, callback: Callable[[torch.Tensor], None]) -> None:
        """Adds a tensor; `callback` is called with the rank's part of its sum, along the first dimension, once the
        bucket is full or flushed.
        """
        self._bucket.append((input, callback))
        self._held += input.numel() * input.element_size()
        if self._held > self.bucket_size_bytes:
            self.flush()

    def flush(self) -> None:
        """Sums what is in the bucket."""
        bucket, self._bucket, self._held = self._bucket, [], 0
        tensors = [tensor for tensor, _ in bucket]
        if tensors:
            parts = collectives.reduce_scatter(
                collectives.REDUCE_SUM, tensors, self.scale, 0, self.shard_count, self.groups
            )
            for part, (_, callback) in zip(parts, bucket, strict=True):
                callback(part)
