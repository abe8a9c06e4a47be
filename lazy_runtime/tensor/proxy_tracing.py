"""`make_fx` on xla tensors: its proxies follow the tensors that the user's function sees.

A dispatch mode stands below functionalization, where it meets the tensors inside of xla's, which no argument and no
parameter is. Such a trace had constants for all of its inputs, and fake tensors met real ones. So while `make_fx`
traces, functionalization waits until the mode has seen the operator. Traces of fake tensors, AOTAutograd's among them,
have no xla tensors inside and stay torch's own.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.fx.experimental import proxy_tensor

from ..compat.torch import DispatchKey, SetExcludeDispatchKeyGuard, is_functional_tensor, is_key_excluded, tree_any
from ..compat.tracing import detect_fake_mode, make_fx_trace

_FUNCTIONALIZE = DispatchKey.Functionalize


class _ProxyMode(proxy_tensor.ProxyTorchDispatchMode):
    """Torch's mode, above functionalization."""

    _guards: list[Any]

    def __enter__(self) -> Any:
        guard = SetExcludeDispatchKeyGuard(_FUNCTIONALIZE, True)
        guard.__enter__()
        self._guards.append(guard)
        return super().__enter__()

    def __exit__(self, *exception: Any) -> Any:
        try:
            return super().__exit__(*exception)
        finally:
            self._guards.pop().__exit__(*exception)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        if self.tracing_mode != "real" and tree_any(_is_xla, (args, kwargs)):
            # for `FakeTensorMode`, which takes a user's tensor or says why not
            return super().__torch_dispatch__(func, types, args, kwargs)
        with SetExcludeDispatchKeyGuard(_FUNCTIONALIZE, False):
            return super().__torch_dispatch__(func, types, args, kwargs)


def is_tracing() -> bool:
    """Whether the calling thread records for `make_fx`, to which operators come as the user has called them."""
    return is_key_excluded(_FUNCTIONALIZE)


def _is_xla(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and is_functional_tensor(leaf)


@functools.cache
def install() -> None:
    """Has `make_fx` trace functions of real tensors by this mode from now on. Idempotent."""
    torchs = make_fx_trace.get()

    @functools.wraps(torchs)
    def trace_inner(self: Any, f: Any, *args: Any) -> Any:
        mode = self.proxy_mode
        if type(mode) is proxy_tensor.ProxyTorchDispatchMode and detect_fake_mode(args) is None:
            mode._guards = []  # type: ignore[attr-defined]
            mode.__class__ = _ProxyMode
        return torchs(self, f, *args)

    make_fx_trace.set(trace_inner)
