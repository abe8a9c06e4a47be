"""Operators without a lowering of their own: torch's decomposition of them into others, or an error that says so."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch._prims as prims
from torch._decomp import decomposition_table
from torch.utils import _pytree as pytree

from . import errors, foreach
from .tensor import XLATensor, to_functional, unwrap

_FUNCTIONALIZE = torch._C.DispatchKey.Functionalize


class _Thread(threading.local):
    """The operators that are being decomposed: one that comes back to itself has no decomposition."""

    def __init__(self) -> None:
        self.open: set[torch._ops.OpOverload] = set()


_thread = _Thread()


def resolve(func: torch._ops.OpOverload) -> Callable[[torch._ops.OpOverload, tuple, dict[str, Any]], Any]:
    """A function (overload, args, kwargs) that serves an operator without a lowering.

    The function raises NotImplementedError, naming the operator, if torch has no decomposition of it either.
    """
    each = foreach.decomposition(func)
    if each is not None:  # a multi-tensor operator leaves the check of devices to each of its parts
        return lambda func, args, kwargs: each(*args, **kwargs)
    decomposition: Callable[..., Any] | None = decomposition_table.get(func)
    if decomposition is None and func.namespace == "prims":
        decomposition = getattr(prims, func._opname).impl_aten
    if decomposition is None and func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
        decomposition = func.decompose

    def decompose(func: torch._ops.OpOverload, args: tuple, kwargs: dict[str, Any]) -> Any:
        check_devices(args, kwargs)
        if decomposition is None or func in _thread.open:
            raise NotImplementedError(errors.no_lowering(func))
        _thread.open.add(func)
        try:
            result = _functionalized(decomposition, args, kwargs)
        finally:
            _thread.open.discard(func)
        if result is NotImplemented:
            raise NotImplementedError(errors.no_lowering(func))
        return result

    return decompose


def _functionalized(function: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
    """Calls `function` above functionalization: torch's decompositions take views and write in place."""

    def wrap(x: Any) -> Any:
        return to_functional(x) if isinstance(x, XLATensor) else x

    def inner(x: Any) -> Any:
        return unwrap(x) if isinstance(x, torch.Tensor) and x.device.type == "xla" else x

    args, kwargs = pytree.tree_map(wrap, (args, kwargs))
    with torch._C._SetExcludeDispatchKeyGuard(_FUNCTIONALIZE, False):
        result = function(*args, **kwargs)
        return pytree.tree_map(inner, result)


def check_devices(args: Any, kwargs: Any) -> None:
    """Raises torch's error where tensors of several devices meet; 0-d ones may come from anywhere."""
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    for other in tensors:
        if other.device != tensors[0].device and tensors[0].dim() > 0 and other.dim() > 0:
            raise RuntimeError(errors.device_mismatch(tensors[0].device, other.device))
