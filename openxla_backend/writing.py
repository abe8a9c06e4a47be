"""Gives the arguments that a graph writes to their new values."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from lazy_runtime import transfer, xla_devices
from lazy_runtime.ir import Handle, Value
from lazy_runtime.spec import TensorSpec
from lazy_runtime.tensor import make, to_functional

# the bare C functions: a training step writes to hundreds of tensors
_torch: Any = torch
_apply_pending_writes = _torch._functionalize_sync
_inner = _torch._from_functional_tensor


def write(targets: Sequence[torch.Tensor], handles: Sequence[Handle], specs: Sequence[TensorSpec]) -> None:
    """What `target.copy_(value)` does under `no_grad`, for each target in turn.

    Where nobody else shows a target's memory, as is usual of a parameter, its inner tensor takes the new handle: a
    quarter of a microsecond. The way through torch's functionalization takes ten.

    Args:
        specs: what the values look like; on xla, targets keep their own look.
    """
    alone = _torch.ops.lazy_runtime.begin_writes(targets, _usual_holders())
    for target, inner, handle, spec in zip(targets, alone, handles, specs, strict=True):
        if inner is not None:
            inner.handle = handle
        elif target.device.type != "xla":
            target.copy_(transfer.to_host(make(handle, spec)))
        else:
            _through_views(target, handle)


@functools.cache
def _usual_holders() -> int:
    """How many hold an inner tensor besides its wrapper: its Python object is one or none, by the version of torch."""
    spec = TensorSpec.of(xla_devices.get(0), torch.float32, ())
    return _torch.ops.lazy_runtime.other_holders(to_functional(make(Handle(Value(None, 0)), spec)))


def _through_views(target: torch.Tensor, handle: Handle) -> None:
    """The steps that torch's functionalization takes at the end of any in-place operator: exchange the value, tell the
    storage that all views share, and take the new value back through it."""
    _apply_pending_writes(target)
    if not _torch._is_functional_tensor_base(target):
        _torch.ops.lazy_runtime.reroot(target)
    _torch._functionalize_replace(target, make(handle, _inner(target).spec))
    _torch._functionalize_commit_update(target)
    _apply_pending_writes(target)
    if not target.is_inference():
        torch.autograd.graph.increment_version(target)
