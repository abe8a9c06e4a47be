"""What Dynamo is told of xla tensors and of this package's backend, when the backend is imported."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch

from lazy_runtime.common import causes, source_locations
from lazy_runtime.compat import tracing
from lazy_runtime.compat.tracing import (
    EffectType,
    fake_rules,
    get_effect,
    infer_unique2,
    register_effectful_op,
)
from lazy_runtime.dispatcher import device_module
from lazy_runtime.torch_xla.core import collectives

from . import traced_files
from .interrupted import restore_threads
from .optimizers import count_on_device
from .recurrent_layers import trace_layers
from .scalar_writes import keep_scalar_writes
from .step_capture import trace_steps


@functools.cache
def register(backends: tuple[Callable[..., Any], ...]) -> None:
    """Prepares Dynamo for these backends, whether it gets them by name or as functions.

    Args:
        backends: the functions that Dynamo calls with a graph.
    """
    _name_files()
    traced_files.register()
    restore_threads()
    _trace_collectives()
    _index_devices()
    _infer_uniques()
    _keep_linalg_checks()
    count_on_device(backends)
    trace_steps(backends)
    trace_layers(backends)
    keep_scalar_writes(backends)


def _name_files() -> None:
    """Says which files are not the user's, and what is being done in them."""
    folder = os.path.dirname(os.path.dirname(__file__))
    source_locations.skip(folder)
    for name, cause in _CAUSES.items():
        causes.register_running(os.path.join(folder, name), cause)


_CAUSES = {
    "compiled.py": "dynamo is compiling a FX graph to HLO",
    "execution/device.py": "dynamo is executing a compiled program",
    "execution/host.py": "dynamo is executing a compiled program",
    "execution/step.py": "the optimizer's step has ended the training step",
}


@functools.cache
def _trace_collectives() -> None:
    """A collective is one operator of a graph: Dynamo needs not look into the function that records it."""
    for function in collectives.TRACED:
        torch.compiler.allow_in_graph(function)


@functools.cache
def _index_devices() -> None:
    """Makes a fake tensor on `xla` be on the current device, as torch does for the types of devices that it lists.
    Otherwise one made with device="xla" in a compiled function does not meet the arguments, which are on `xla:0`.
    """
    if tracing.is_indexed_device_type.is_there():
        is_indexed = tracing.is_indexed_device_type.get()
        tracing.is_indexed_device_type.set(lambda kind: kind == "xla" or is_indexed(kind))
        return
    make = tracing.fake_tensor_new.get()  # torch 2.11 has the list in the midst of this

    def indexed(cls: Any, mode: Any, elem: Any, device: Any, *args: Any, **kwargs: Any) -> Any:
        device = torch.device(device)
        if device.type == "xla" and device.index is None:
            device = torch.device("xla", device_module.current_device() if device_module.is_initialized() else 0)
        return make(cls, mode, elem, device, *args, **kwargs)

    tracing.fake_tensor_new.set(staticmethod(indexed))


@functools.cache
def _infer_uniques() -> None:
    """Before 2.13 torch does not know that the size of `aten::_unique`'s result depends on data (`index_fill` has it in
    its gradient): it calls the kernel on zeros of the tensor's device, which cannot be made of fake xla tensors.
    """

    def unique(mode: Any, func: Any, x: Any, is_sorted: bool = True, return_inverse: bool = False) -> Any:
        return infer_unique2(mode, func, x, is_sorted, return_inverse)[:2]  # `_unique2` gives the counts too

    fake_rules.setdefault(torch.ops.aten._unique.default, unique)


@functools.cache
def _keep_linalg_checks() -> None:
    """Before 2.13 torch drops from a graph what raises for singular matrices, as it has no result."""
    if get_effect("aten::_linalg_check_errors") is None:
        register_effectful_op("aten::_linalg_check_errors", EffectType.ORDERED)
