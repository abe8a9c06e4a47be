"""Activation checkpointing that the compiler does not undo.

`torch.utils.checkpoint` computes a function again in the backward pass instead of keeping its activations. Within one
XLA program both computations are equal, so the compiler merges them and keeps the activations after all. A barrier
between them prevents that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointFunction, detach_variable
from torch.utils.checkpoint import checkpoint as _torchs

from ...compat.torch import tree_flatten, tree_unflatten

__all__ = ["CheckpointFunction", "checkpoint", "detach_variable"]


class _Barrier(torch.autograd.Function):
    """The identity, behind a barrier in the forward direction and one of its own in the backward one."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.ops.lazy_runtime.optimization_barrier(list(tensors)))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        return grads


def checkpoint(
    function: Callable[..., Any], *args: Any, use_reentrant: bool = True, preserve_rng_state: bool = True, **kwargs: Any
) -> Any:
    """`torch.utils.checkpoint.checkpoint`, whose second computation is kept apart from the first.

    Args:
        function: computes what is not kept.
        args: its arguments. Tensors among them (in lists, tuples and dicts too) are behind the barrier; those that the
            function finds elsewhere, as a module does its parameters, need none.
        use_reentrant, preserve_rng_state, kwargs: as torch has them.
    """
    computed = False

    def with_barrier(*inputs: Any, **options: Any) -> Any:
        nonlocal computed
        if computed:
            inputs, options = _behind_barrier((inputs, options))
        computed = True
        return function(*inputs, **options)

    return _torchs(with_barrier, *args, use_reentrant=use_reentrant, preserve_rng_state=preserve_rng_state, **kwargs)


def _behind_barrier(nest: Any) -> Any:
    leaves, spec = tree_flatten(nest)
    places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.device.type == "xla"]
    if places:
        for place, same in zip(places, _Barrier.apply(*[leaves[place] for place in places]), strict=True):
            leaves[place] = same
    return tree_unflatten(leaves, spec)
