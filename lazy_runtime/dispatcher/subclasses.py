"""Tensor subclasses that hold xla tensors, such as DTensor.

What a user calls on one comes to its `__torch_dispatch__`, from where it calls on what it holds: below autograd, and
below functionalization too, which comes before subclasses in torch's order of keys. An xla tensor of ours is nothing
without functionalization. So what arrives at the backend's key, where we have few kernels, is sent back there.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import Any

import torch

from .. import native
from ..compat.torch import DispatchKey as _KEYS
from ..compat.torch import (
    OpOverload,
    SetExcludeDispatchKeyGuard,
    is_functional_tensor,
    kernel_call_of,
    tree_leaves,
)
from ..compat.torch import is_key_excluded as _is_excluded
from ..ops import registry
from ..tensor.xla_tensor import XLATensor

_libraries: dict[str, torch.library.Library] = {}
_registering = threading.Lock()


def functionalize(overload: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Calls an operator above functionalization.

    Raises:
        NotImplementedError: none of the arguments is one of our tensors.
    """
    leaves = tree_leaves((args, kwargs))
    if any(isinstance(leaf, torch.Tensor) and is_functional_tensor(leaf) for leaf in leaves):
        with SetExcludeDispatchKeyGuard(_KEYS.Functionalize, False):
            return overload(*args, **kwargs)
    if _is_excluded(_KEYS.Python) and any(type(leaf) is XLATensor for leaf in leaves):
        # torch's `no_dispatch`, by which it means to pass over modes and subclasses of others
        with SetExcludeDispatchKeyGuard(_KEYS.Python, False):
            return overload(*args, **kwargs)
    if overload.has_kernel_for_dispatch_key(_KEYS.CompositeExplicitAutograd):
        return kernel_call_of(overload)(_KEYS.CompositeExplicitAutograd, *args, **kwargs)
    raise NotImplementedError(f"{overload} with arguments from the XLA backend, none of which is an xla tensor")


@functools.cache
def register() -> None:
    """Registers the way back for all operators. Idempotent."""
    native.writes().xla_register_fallback(_register_kernel)
    # torch has kernels for any backend of these, which come first: a transpose would be a gather of all elements
    for overload in (*registry.table, torch.ops.aten.copy_.default):
        if overload.namespace == "aten":
            send_back(overload)


@ctypes.CFUNCTYPE(None, ctypes.c_char_p)
def _register_kernel(name: bytes) -> None:
    """Registers the way back for an operator that has no kernel for xla and was called."""
    overload = registry.overload(name.decode())
    if overload is not None:
        _register_own(overload)


def send_back(overload: OpOverload) -> None:
    """Registers the way back for an operator that torch may have a kernel of, for any backend."""
    if overload.has_kernel_for_dispatch_key(_KEYS.CompositeExplicitAutograd):
        _register_own(overload)


def _register_own(overload: OpOverload) -> None:
    with _registering:
        if not overload.has_kernel_for_dispatch_key(_KEYS.XLA):
            _library(overload.namespace).impl(overload, functools.partial(functionalize, overload), "XLA")


def _library(namespace: str) -> torch.library.Library:
    if namespace not in _libraries:
        _libraries[namespace] = torch.library.Library(namespace, "IMPL")
    return _libraries[namespace]
