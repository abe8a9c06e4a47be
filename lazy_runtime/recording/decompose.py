"""Operators without a lowering of their own: torch's decomposition of them into others, or a call of torch's kernel."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from ..common import errors
from ..compat.torch import (
    DispatchKey,
    OpOverload,
    SetExcludeDispatchKeyGuard,
    kernel_call_of,
    schema_of,
    tree_leaves,
    tree_map,
)
from ..compat.torch import is_functional_tensor as _is_functional
from ..compat.tracing import decomposition_table, prims
from ..tensor.xla_tensor import XLATensor, to_functional, unwrap
from . import autocast, foreach, library_operators

_FUNCTIONALIZE = DispatchKey.Functionalize


def _no_fallback(func: OpOverload, args: tuple, kwargs: dict[str, Any]) -> Any:
    raise AssertionError("lazy_runtime.recording.fallback is not loaded")


#: Serves what has no decomposition either; `fallback.py`, which stands above `dispatch`, sets it.
fallback: Callable[[OpOverload, tuple, dict[str, Any]], Any] = _no_fallback

#: Gives what makes a decomposition's factories record; `traced_factories.py`, which stands above `dispatch`, sets it.
factories: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext


def _no_check(func: OpOverload, args: tuple, kwargs: dict[str, Any]) -> None:
    raise AssertionError("lazy_runtime.recording.dispatch is not loaded")


#: Raises what torch's CPU kernel refuses of a call; `dispatch.py` sets it.
check_call: Callable[[OpOverload, tuple, dict[str, Any]], None] = _no_check

_library: torch.library.Library | None = None


def register() -> None:
    """Registers prims that give views or write: functionalization knows only aten's. Torch's own decompositions call
    them. Idempotent.
    """
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("prims", "IMPL")
    for name in prims.__all__:
        prim = getattr(prims, name, None)
        if isinstance(prim, OpOverload) and any(
            returned.alias_info is not None for returned in schema_of(prim).returns
        ):
            _library.impl(prim, getattr(prim, "impl_aten"), "Functionalize")  # noqa: B009  torch adds the attribute


class _Thread(threading.local):
    """The operators that are being decomposed: one that comes back to itself has no decomposition."""

    def __init__(self) -> None:
        self.open: set[OpOverload] = set()


_thread = _Thread()


def resolve(func: OpOverload) -> Callable[[OpOverload, tuple, dict[str, Any]], Any]:
    """A function (overload, args, kwargs) that serves an operator without a lowering.

    If torch has no decomposition of it either, its CPU kernel is called (`fallback.py`).
    """
    each = foreach.decomposition(func)
    if each is not None:  # a multi-tensor operator leaves the check of devices to each of its parts
        return functools.partial(_each, each)
    # Arrives in inference mode only: elsewhere autograd's key has taken it apart, as is done here too where torch's
    # table has an entry, which may come back to it through prims.
    composite = _is_composite(func)
    decomposition: Callable[..., Any] | None = func.decompose if composite else decomposition_table.get(func)
    run = _functionalized
    decomposition = decomposition or library_operators.decomposition(func)
    if decomposition is None and func.namespace == "torch_nn":  # torch's own in Python: a body of aten's operators
        decomposition = functools.partial(kernel_call_of(func), DispatchKey.CompositeExplicitAutograd)
    if decomposition is None and func.has_kernel_for_dispatch_key(DispatchKey.XLA):  # a user's own for xla
        decomposition = functools.partial(kernel_call_of(func), DispatchKey.XLA)
    if decomposition is None and func.namespace == "prims":
        decomposition = getattr(func, "impl_aten")  # noqa: B009  torch adds the attribute
        run = _directly  # one prim is made of others, and functionalization refuses those that write

    def decompose(func: OpOverload, args: tuple, kwargs: dict[str, Any]) -> Any:
        if not composite:
            check_devices(func, args, kwargs)
        if decomposition is None or func in _thread.open:
            return fallback(func, args, kwargs)
        if not composite:
            check_call(func, args, kwargs)
        entry = autocast.on_entry() if composite and all(map(_is_composite, _thread.open)) else contextlib.nullcontext()
        _thread.open.add(func)
        try:
            with entry:
                result = run(decomposition, args, kwargs)
        finally:
            _thread.open.discard(func)
        return fallback(func, args, kwargs) if result is NotImplemented else result

    return decompose


def _each(each: Callable[..., Any], func: OpOverload, args: tuple, kwargs: dict[str, Any]) -> Any:
    """A multi-tensor operator.

    Raises:
        NotImplementedError: some tensors are sparse and others dense.
    """
    for arg in args:
        if isinstance(arg, list | tuple):
            for item in arg:
                if isinstance(item, torch.Tensor) and item.layout is not torch.strided:
                    raise NotImplementedError(errors.with_sparse(func))
    return each(*args, **kwargs)


def _is_composite(func: OpOverload) -> bool:
    return func.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd)


def _directly(function: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
    return function(*args, **kwargs)


def _functionalized(function: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
    """Calls `function` above functionalization: torch's decompositions take views and write in place."""

    def wrap(x: Any) -> Any:
        return to_functional(x) if isinstance(x, XLATensor) else x

    def inner(x: Any) -> Any:
        # in a program that runs on plain tensors the device is theirs
        return unwrap(x) if isinstance(x, torch.Tensor) and _is_functional(x) else x

    args, kwargs = tree_map(wrap, (args, kwargs))
    with SetExcludeDispatchKeyGuard(_FUNCTIONALIZE, False), factories():
        result = function(*args, **kwargs)
        return tree_map(inner, result)


def check_devices(func: OpOverload, args: Any, kwargs: Any) -> None:
    """Raises torch's error where tensors of several devices meet; 0-d ones may come from anywhere.

    Raises:
        NotImplementedError: a tensor is sparse.
    """
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    for other in tensors:
        if other.layout is not torch.strided:
            raise NotImplementedError(errors.with_sparse(func))
        if other.device != tensors[0].device and tensors[0].dim() > 0 and other.dim() > 0:
            raise RuntimeError(errors.device_mismatch(tensors[0].device, other.device))
