"""`torch.autocast("xla")`: which operators run in which dtype, decided before autograd sees them.

Every build of torch carries CUDA's autocast kernels, and they accept xla tensors (`is_autocast_eligible` in
ATen/autocast_mode.h). So the lists of operators, the rules of promotion, the errors and the cache of cast weights with
its end at the outermost `autocast` are torch's own. They only do not know xla's dtype and dispatch key, which the
kernels here see to. Every other operator falls through to autograd.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import enable_reentrant_dispatch

from ..compat.torch import (
    DispatchKey,
    DispatchKeySet,
    ExcludeDispatchKeyGuard,
    OpOverload,
    dispatch_key_parse,
    kernel_call_of,
    registrations_for_key,
    tree_map,
)
from ..compat.torch import is_key_excluded as _is_excluded
from ..ops import registry

_CUDA = DispatchKey.AutocastCUDA
_XLA = DispatchKeySet(dispatch_key_parse("AutocastXLA"))  # the enum of Python has no such name

_SNAPSHOT = dispatch_key_parse("PythonTLSSnapshot")

_get_dtype = torch.get_autocast_dtype
_set_dtype = torch.set_autocast_dtype

#: Recurrent layers: CUDA's lists leave them to a kernel that only builds with cuDNN have, which casts like this.
RECURRENT = tuple(
    f"aten::{name}.{form}" for name in ("lstm", "gru", "rnn_tanh", "rnn_relu") for form in ("input", "data")
)

#: Composite operators of listed ones that have lowerings: inference mode would not take them apart for their casts.
COMPOSITE = ("aten::square",)

_libraries: list[torch.library.Library] = []


def register() -> None:
    """Registers the kernels for AutocastXLA: without them every operator under `autocast` raises. Idempotent."""
    if _libraries:
        return
    library = torch.library.Library("aten", "IMPL")
    everything = torch.library.Library("_", "IMPL")
    _libraries.extend((library, everything))
    everything.fallback(torch.library.fallthrough_kernel, "AutocastXLA")
    for name in registrations_for_key("AutocastCUDA"):
        overload = registry.overload(name) if name.startswith("aten::") else None
        if overload is not None:
            library.impl(overload, _as_cuda(overload), "AutocastXLA")
    for name in RECURRENT:
        overload = registry.overload(name)
        if overload is not None:
            library.impl(overload, _lower_precision(overload), "AutocastXLA")
    for name in COMPOSITE:
        overload = registry.overload(name)
        if overload is not None:
            library.impl(overload, overload.decompose, "AutocastXLA")


def on_entry() -> contextlib.AbstractContextManager[Any]:
    """The context for a composite operator that inference mode has handed on whole to `__torch_dispatch__`.

    Torch suspends autocast there, but the parts of a composite operator have still to be cast: cross entropy is none of
    the listed operators, log softmax in it is. So where autocast was on, the dispatcher's state is as on entry.
    """
    nothing = contextlib.nullcontext()
    if not (torch.is_inference_mode_enabled() and _is_excluded(_SNAPSHOT)):  # the latter: inside __torch_dispatch__
        return nothing
    with enable_reentrant_dispatch():
        active = torch.is_autocast_enabled("xla")
    return enable_reentrant_dispatch() if active else nothing


def _as_cuda(overload: OpOverload) -> Callable[..., Any]:
    """The kernel that casts as CUDA's does and calls the operator outside of `autocast`."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = _get_dtype("cuda")
        with ExcludeDispatchKeyGuard(_XLA):
            _set_dtype("cuda", _get_dtype("xla"))  # the state is the thread's own
            try:
                return kernel_call_of(overload)(_CUDA, *args, **kwargs)
            finally:
                _set_dtype("cuda", dtype)

    return kernel


def _lower_precision(overload: OpOverload) -> Callable[..., Any]:
    """The kernel that casts every eligible tensor to the dtype of `autocast`."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = _get_dtype("xla")

        def cast(x: Any) -> Any:
            eligible = isinstance(x, torch.Tensor) and x.is_floating_point() and x.dtype is not torch.float64
            return x.to(dtype) if eligible and x.device.type == "xla" else x

        with ExcludeDispatchKeyGuard(_XLA):
            args, kwargs = tree_map(cast, (args, kwargs))
            return overload(*args, **kwargs)

    return kernel
