"""Torch's optimizers with `fused=True` on xla: one operator, and one node of the graph, for a group's parameters."""

from __future__ import annotations

import functools
from typing import Any

import torch

from ..compat.torch import OpOverload, fused_devices, has_kernel, schema_of, tree_map
from ..execution.assign import write
from ..ops import registry
from ..tensor.xla_tensor import unwrap
from . import dispatch, views

_NAMES = tuple(f"_fused_{name}" for name in ("adam", "adamw", "sgd", "adagrad"))
_KINDS = ("", ".tensor_lr")


@dispatch.handler(*(f"aten::{name}{kind}" for name in _NAMES for kind in _KINDS))
def _fused(func: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The node gives a flat list of what changes, the operator a list for each of its lists of tensors."""
    flat = iter(dispatch.record(registry.table[func], args, kwargs))
    scaled = kwargs.get("grad_scale") is not None
    results = []
    for argument, tensors in zip(schema_of(func).arguments, args[: len(schema_of(func).returns)], strict=False):
        changes = argument.name != "state_steps" and (argument.name != "grads" or scaled)
        results.append([next(flat) for _ in tensors] if changes else list(tensors))
    return tuple(results)


def _fused_in_place(functional: OpOverload, *args: Any, **kwargs: Any) -> None:
    """In autograd's place, before torch's functionalization, which takes a list without tensors, such as Adam's largest
    squares, for CPU tensors.
    """
    lists = args[: len(schema_of(functional).returns)]
    if not views.has_memory(lists[0][0]):  # Dynamo's stand-ins
        for targets, results in zip(lists, functional(*args, **kwargs), strict=True):
            for target, result in zip(targets, results, strict=True):
                target.copy_(result)
        return
    inner_args, inner_kwargs = tree_map(_inner, (args, kwargs))
    targets: list[torch.Tensor] = []
    results: list[Any] = []
    for outer, inner, new in zip(lists, inner_args, _fused(functional, inner_args, inner_kwargs), strict=False):
        if new and new[0] is not inner[0]:
            targets += outer
            results += new
    if torch.is_grad_enabled():
        for target in targets:
            torch.ops.lazy_runtime.check_inplace(target)
    write(targets, [new.handle for new in results], [new.spec for new in results])


def _inner(x: Any) -> Any:
    return unwrap(x) if isinstance(x, torch.Tensor) and views.has_memory(x) else x


@functools.cache
def allow() -> None:
    """Puts xla on torch's list of the devices on which `fused=True` is taken."""
    devices = fused_devices.get()

    def with_xla() -> list[str]:
        return [*devices(), "xla"]

    # Dynamo follows functions by their files, torch's but not ours: it would leave every Adam to be recorded uncompiled
    with_xla.__code__ = with_xla.__code__.replace(co_filename=devices.__code__.co_filename)
    fused_devices.set(with_xla)


def register(library: torch.library.Library) -> None:
    """Registers the kernels, and for Dynamo's stand-ins the meta kernels that torch (2.13) lacks: the operators write
    to their arguments and give nothing.
    """
    for name in _NAMES:
        for kind in _KINDS:
            functional = registry.overload(f"aten::{name}{kind}")
            if functional is None:
                continue
            library.impl(f"{name}_{kind}", functools.partial(_fused_in_place, functional), "AutogradXLA")
            if not has_kernel(f"aten::{name}_{kind}", "Meta"):
                library.impl(f"{name}_{kind}", lambda *args, **kwargs: None, "Meta")
    allow()
