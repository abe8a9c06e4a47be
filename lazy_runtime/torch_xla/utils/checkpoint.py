"""Activation checkpointing that the compiler does not undo.

`torch.utils.checkpoint` computes a function again in the backward pass instead of keeping its activations. Within one
XLA program both computations are equal, so the compiler merges them and keeps the activations after all. A barrier
between them prevents that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointFunction as _Reentrant
from torch.utils.checkpoint import checkpoint as _torchs
from torch.utils.checkpoint import detach_variable

from ...compat.torch import tree_flatten, tree_unflatten
from ..core import random_states

__all__ = [
    "CheckpointFunction",
    "CheckpointStatus",
    "checkpoint",
    "chkpt_status",
    "detach_variable",
    "get_device_states",
    "set_device_states",
]


class CheckpointStatus:
    """What the calling thread does.

    Attributes:
        in_chkpt_bwd: a checkpoint's function is being computed again, for its backward pass.
    """

    def __init__(self) -> None:
        self.in_chkpt_bwd = False


#: See `CheckpointStatus`.
chkpt_status = CheckpointStatus()


def get_device_states(*args: Any) -> tuple[list[torch.device], list[Any]]:
    """The devices of the tensors among the arguments, CPUs left out, and the states of their random numbers: a number
    for an xla device, as `xm.get_rng_state` gives it, and a tensor for any other.
    """
    devices = list(dict.fromkeys(each.device for each in args if isinstance(each, torch.Tensor)))
    devices = [each for each in devices if each.type != "cpu"]
    return devices, [_states(each).get_rng_state(each) for each in devices]


def set_device_states(devices: Sequence[torch.device], states: Sequence[Any]) -> None:
    """Goes on from states of `get_device_states`."""
    for device, state in zip(devices, states, strict=True):
        _states(device).set_rng_state(state, device)


def _states(device: torch.device) -> Any:
    return random_states if device.type == "xla" else torch.get_device_module(device)


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
    again = _computed_apart(function)
    return _torchs(again, *args, use_reentrant=use_reentrant, preserve_rng_state=preserve_rng_state, **kwargs)


class CheckpointFunction(_Reentrant):
    """What `checkpoint` with `use_reentrant` computes: `apply(function, preserve_rng_state, *args)`."""

    @staticmethod
    def forward(ctx: Any, run_function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        return _Reentrant.forward(ctx, _computed_apart(run_function), preserve_rng_state, *args)


def _computed_apart(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose calls after the first one are behind a barrier, and say that they are."""
    computed = False

    def with_barrier(*inputs: Any, **options: Any) -> Any:
        nonlocal computed
        if not computed:
            computed = True
            return function(*inputs, **options)
        inputs, options = _behind_barrier((inputs, options))
        outer, chkpt_status.in_chkpt_bwd = chkpt_status.in_chkpt_bwd, True
        try:
            return function(*inputs, **options)
        finally:
            chkpt_status.in_chkpt_bwd = outer

    return with_barrier


def _behind_barrier(nest: Any) -> Any:
    leaves, spec = tree_flatten(nest)
    places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.device.type == "xla"]
    if places:
        for place, same in zip(places, _Barrier.apply(*[leaves[place] for place in places]), strict=True):
            leaves[place] = same
    return tree_unflatten(leaves, spec)
