"""Moves of modules between xla and other devices, which keep the identity of parameters, as moves to CUDA do.

Torch's `Module._apply` gives a parameter new contents with `param.data = moved`, which needs both tensors to be of one
kind in C++. An xla tensor and a CPU tensor are not, so torch would put another parameter in each place: shared weights
would come apart, and an optimizer would go on with the old tensors. Here the Python object keeps its place and gets
the insides of the moved tensor. Moves that do not cross between xla and another device stay torch's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..compat.torch import (
    DisableTorchFunctionSubclass,
    accumulate_hooks_of,
    backward_hooks_of,
    module_apply,
    set_accumulate_hooks,
    set_backward_hooks,
    swap_tensor_impl,
    use_count_of,
)


class _Move:
    """What `Module._apply` calls for each tensor, around the function that it was given.

    Attributes:
        function: that function.
        _buffers: moved buffers by the identity of what they were, along with that, so that it stays alive. Buffers
            that several modules share stay shared; the old ones keep their device, as on CUDA.
        script_parameters: the identities of a script module's parameters, which may be tensors of no other class.
    """

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]):
        self.function = function
        self._buffers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.script_parameters: set[int] = set()

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        known = self._buffers.get(id(tensor))
        if known is not None:
            return known[1]
        moved = _of_user(self.function(tensor))
        if not _crosses(tensor, moved):
            return moved
        if not isinstance(tensor, torch.nn.Parameter) and id(tensor) not in self.script_parameters:
            self._buffers[id(tensor)] = tensor, moved
            return moved
        grad = tensor.grad
        if grad is not None:
            if not grad.is_leaf:
                raise RuntimeError(
                    "a parameter whose gradient has a graph (create_graph=True) cannot move to or from xla, which "
                    "would cut that graph: set its `grad` to None, or to `grad.detach()`, before the move"
                )
            with torch.no_grad():
                moved_grad = _of_user(self.function(grad))
            if _crosses(grad, moved_grad):
                _exchange(grad, moved_grad)
        _exchange(tensor, moved)
        tensor.grad = grad
        return tensor


def _of_user(moved: torch.Tensor) -> torch.Tensor:
    """Under a `TorchDispatchMode` a move gives what functionalization works on, and not what it makes for users."""
    with DisableTorchFunctionSubclass():
        if moved.device.type != "xla":
            return moved
    from ..tensor.xla_tensor import XLATensor, to_functional  # jax has been imported by now

    return to_functional(moved) if type(moved) is XLATensor else moved


def _crosses(tensor: torch.Tensor, moved: torch.Tensor) -> bool:
    """Whether a tensor has left xla or come to it, and torch would not exchange its insides itself."""
    with DisableTorchFunctionSubclass():  # a lazy module's parameters refuse most questions
        crosses = (tensor.device.type == "xla") != (moved.device.type == "xla")
    return crosses and not _is_torchs(tensor) and not _is_torchs(moved)


def _is_torchs(tensor: torch.Tensor) -> bool:
    from ..compat.torch import is_traceable_wrapper_subclass
    from ..compat.tracing import FakeTensor

    return isinstance(tensor, FakeTensor) or is_traceable_wrapper_subclass(tensor)


class _Unmovable(Exception):
    """A tensor whose insides cannot be exchanged, and torch's reason."""

    def __init__(self, tensor: torch.Tensor, reason: str):
        super().__init__(tensor, reason)
        self.tensor = tensor
        self.reason = reason


def _exchange(tensor: torch.Tensor, moved: torch.Tensor) -> None:
    """Gives `tensor` the contents of `moved`; its class, attributes, hooks and whoever refers to it stay.

    `torch.utils.swap_tensors` exchanges classes and attributes too, and refuses what others refer to. A weak reference
    goes on leading to the same object, as after `tensor.data = ...`. A graph that holds the old insides has its values;
    a backward pass through it, whose gradient would reach nobody, raises.
    """
    with DisableTorchFunctionSubclass():
        fresh = moved.detach().requires_grad_(tensor.requires_grad)
        hooks, later_hooks = backward_hooks_of(tensor), accumulate_hooks_of(tensor)
        try:
            swap_tensor_impl(tensor, fresh)
        except RuntimeError as error:
            raise _Unmovable(tensor, str(error).partition("\n")[0]) from error
        left = fresh  # the object that has the old insides
        if hooks is not None:  # the object has kept them, but what autograd asks is the insides
            set_backward_hooks(tensor, hooks)
        if later_hooks is not None:
            set_accumulate_hooks(tensor, later_hooks)
        if left.requires_grad and use_count_of(left) > 1:
            torch.autograd.graph.get_gradient_edge(left).node.register_prehook(_refuse_backward)


def _refuse_backward(gradients: Any) -> None:
    raise RuntimeError(
        "backward through a parameter that has moved to or from xla since the forward pass: move the module before "
        "the forward pass, or after the backward pass"
    )


def _applying(torchs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(torchs)
    def _apply(self: torch.nn.Module, fn: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or _asks_for_new_parameters():
            return torchs(self, fn, *args, **kwargs)
        if isinstance(self, torch.nn.parallel.DistributedDataParallel):
            fn = _Move(_refusing(fn.function if type(fn) is _Move else fn))
        elif type(fn) is not _Move:
            fn = _Move(fn)
        slots = list(self._parameters.items()) if isinstance(self, torch.jit.ScriptModule) else ()
        fn.script_parameters = {id(parameter) for _, parameter in slots}
        try:
            moved = torchs(self, fn, *args, **kwargs)
        except _Unmovable as error:
            names = [name for name, parameter in self._parameters.items() if parameter is error.tensor]
            raise RuntimeError(
                f"{type(self).__name__}.{names[0] if names else 'grad'} cannot move to or from xla in place "
                f"({error.reason}), and another parameter in its place would leave shared weights and optimizers with "
                "the old one: drop what refers to it, or move the module before"
            ) from error
        for name, parameter in slots:  # in C++, where a slot holds the insides
            self._parameters[name] = parameter
        return moved

    return _apply


def _asks_for_new_parameters() -> bool:
    """Whether the user has asked torch for one of its own ways."""
    future = torch.__future__
    return future.get_swap_module_params_on_conversion() or future.get_overwrite_module_params_on_conversion()


def _refusing(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def move(tensor: torch.Tensor) -> torch.Tensor:
        moved = function(tensor)
        if _crosses(tensor, moved):
            raise RuntimeError(
                "a module within DistributedDataParallel cannot move to or from xla: its reducer would go on with the "
                "old parameters, and gradients would no longer be averaged. Move the module before it is wrapped"
            )
        return moved

    return move


_is_installed = False


def install() -> None:
    """Makes `Module._apply`, through which `to`, `cpu`, `to_empty` and their like go, keep parameters. Idempotent."""
    global _is_installed
    if not _is_installed:
        module_apply.set(_applying(module_apply.get()))
        _is_installed = True
