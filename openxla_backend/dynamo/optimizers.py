"""Optimizers in compiled functions count their steps on the device.

Torch's optimizers count on the CPU, one number for each parameter, unless they are `capturable`. Where Dynamo compiles
one whose parameters are on CUDA it makes it so, before the state is there (`OptimizerVariable._set_capturable`). On xla
counters on the CPU would have to cross to the device and back in each step, and the step would wait for them.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lazy_runtime.compat.dynamo import OptimizerVariable, move_step_if_cpu, set_capturable
from lazy_runtime.compat.tracing import TracingContext
from lazy_runtime.recording import adam
from lazy_runtime.regions import compiling

from .step_capture import is_for

#: Those that torch lets go on outside of the compiled function: each of torch/optim/*.py has a list of the devices on
#: which it takes `capturable`, and with `foreach=True` fewer lists have xla.
CAPTURABLE = tuple(
    getattr(torch.optim, name) for name in ("Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")
)


@functools.cache
def count_on_device(backends: Sequence[Callable[..., Any]]) -> None:
    """Makes Dynamo treat optimizers of xla parameters as those of CUDA's.

    Args:
        backends: the functions for which Adam's formula on CPU tensors is one for learning rates of 0 too.
    """
    original = set_capturable.get()
    ours = is_for(backends)

    def with_xla(self: OptimizerVariable, tx: Any) -> None:
        for group in self.value.param_groups:
            # a region of `lazy_runtime.compile` leaves the optimizer as one that can go on elsewhere
            if _is_ours(self.value, group) and not compiling.is_tracing():
                group["capturable"] = True
        if ours(tx.output):
            _traced_here.add(TracingContext.get())
        original(self, tx)

    set_capturable.set(with_xla)
    adam.register()
    adam.is_traced_here = _is_traced_here
    torch.compiler.assume_constant_result(adam.is_compiled_on_cpu)
    _return_counters()


#: The traces for backends of ours that have come to an optimizer.
_traced_here: weakref.WeakSet[TracingContext] = weakref.WeakSet()


def _is_traced_here() -> bool:
    context = TracingContext.try_get()
    return context is not None and context in _traced_here


def _return_counters() -> None:
    """Where Dynamo has moved counters to the device for a region that is recorded after all, they go back: there each
    would be read in each step.
    """
    move = move_step_if_cpu.get()

    def move_first(self: OptimizerVariable) -> None:
        compiling.on_recording(functools.partial(_count_on_host, weakref.ref(self.value)))
        if _is_first(self.value):
            move(self)

    move_step_if_cpu.set(move_first)


#: The optimizers whose counters each trace has moved.
_moved: weakref.WeakKeyDictionary[TracingContext, weakref.WeakSet[torch.optim.Optimizer]] = weakref.WeakKeyDictionary()


def _is_first(optimizer: torch.optim.Optimizer) -> bool:
    """Whether this trace has not come to the optimizer before. Dynamo moves counters at each group: those of an earlier
    one are in the graph by then, and what would take their place in the optimizer's state, nothing would count.
    """
    seen = _moved.setdefault(TracingContext.get(), weakref.WeakSet())
    if optimizer in seen:
        return False
    seen.add(optimizer)
    return True


def _count_on_host(reference: weakref.ref[torch.optim.Optimizer]) -> None:
    optimizer = reference()
    if optimizer is None:
        return
    for group in optimizer.param_groups:
        if group.get("capturable") or group.get("fused"):
            continue
        for state in [optimizer.state[p] for p in group["params"] if p in optimizer.state]:
            if isinstance(state.get("step"), torch.Tensor):
                state["step"] = state["step"].cpu()


def _is_ours(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> bool:
    """Whether a group of parameters on xla has no state yet, and may have its counters there."""
    if not isinstance(optimizer, CAPTURABLE) or "capturable" not in group or group.get("foreach"):
        return False
    return all(p.device.type == "xla" and p not in optimizer.state for p in group["params"])
