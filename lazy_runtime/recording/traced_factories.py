"""Factories within torch's decompositions, in a trace of a program that runs on plain tensors.

A decomposition makes its constants on the device of its arguments. On an xla device torch asks this package's kernels
for them; plain tensors have kernels of torch's, whose tensors know no trace.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from ..compat.torch import DispatchKey, IncludeDispatchKeyGuard, TorchDispatchMode, tree_leaves
from ..execution import transfer
from ..tensor.xla_tensor import XLATensor
from . import decompose, dispatch
from .dispatch import Trace

aten = torch.ops.aten

_LIFTS = frozenset({aten.lift.default, aten.lift_fresh.default, aten.lift_fresh_copy.default})


class _Factories(TorchDispatchMode):
    """Records what makes a tensor of none on the trace's device; of data of the decomposition's own it makes constants.

    Args:
        trace: where the calling thread records; it is for plain tensors.
    """

    def __init__(self, trace: Trace):
        super().__init__()
        self._trace = trace

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        device = self._trace.device
        if func in _LIFTS and not isinstance(tensors[0], XLATensor):
            return transfer.to_device(tensors[0], device)
        if tensors or "device" not in kwargs or (kwargs["device"] or _CPU).type != device.torch_device.type:
            return func(*args, **kwargs)
        kept = {name: value for name, value in kwargs.items() if name not in ("layout", "pin_memory")}
        return dispatch.dispatch(XLATensor, func, (), args, kept | {"device": device.torch_device})


_CPU = torch.device("cpu")


@contextlib.contextmanager
def _of_decomposition() -> Iterator[None]:
    """Functionalization wraps what factories and copies give only where its key is included: of a plain tensor's device
    it takes their results for somebody else's.
    """
    trace = dispatch.current_trace()
    if trace is None or trace.device.torch_device.type == "xla":
        yield
        return
    with IncludeDispatchKeyGuard(DispatchKey.Functionalize), _Factories(trace):
        yield


decompose.factories = _of_decomposition
