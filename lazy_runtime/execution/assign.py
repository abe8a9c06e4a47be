"""Gives tensors that a graph or an operator has written to their new values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..compat.torch import from_functional_tensor as _inner
from ..compat.torch import functionalize_commit_update, functionalize_replace, is_functional_tensor_base
from ..compat.torch import functionalize_sync as _apply_pending_writes
from ..ir.graph import Handle
from ..ir.spec import TensorSpec
from ..tensor.xla_tensor import make, rebind
from . import transfer

# the bare C functions: a training step writes to hundreds of tensors
_torch: Any = torch


def write(targets: Sequence[torch.Tensor], handles: Sequence[Handle], specs: Sequence[TensorSpec]) -> None:
    """What `target.copy_(value)` does under `no_grad`, for each target in turn.

    Where nobody else shows a target's memory, as is usual of a parameter, its inner tensor takes the new handle: a
    quarter of a microsecond. The way through torch's functionalization takes ten.

    Args:
        specs: what the values look like; on xla, targets keep their own look.
    """
    if all(target.device.type != "xla" for target in targets):  # which the operator is not for; it stops at the first
        values = roots = [None] * len(targets)
    else:
        values, roots = _torch.ops.lazy_runtime.begin_writes(targets)
    for target, value, root, handle, spec in zip(targets, values, roots, handles, specs, strict=True):
        if value is not None:
            rebind(value, handle)
            if root is not None:
                rebind(root, handle)
        elif target.device.type != "xla":
            target.copy_(transfer.to_host(make(handle, spec)))
        else:
            _through_views(target, handle)


def _through_views(target: torch.Tensor, handle: Handle) -> None:
    """The steps that torch's functionalization takes at the end of any in-place operator: exchange the value, tell the
    storage that all views share, and take the new value back through it.
    """
    _apply_pending_writes(target)
    if not is_functional_tensor_base(target):
        _torch.ops.lazy_runtime.reroot(target)
    functionalize_replace(target, make(handle, _inner(target).spec))
    functionalize_commit_update(target)
    _apply_pending_writes(target)
    if not target.is_inference():
        torch.autograd.graph.increment_version(target)
