"""Activation checkpoints on lazy tensors: what is computed once more in a backward pass stays a computation of its own.

`torch.utils.checkpoint` runs a part of the forward pass again when its gradients are wanted. In one program with the
forward pass XLA would find that it has all that already, or compute it long before: either keeps in memory what the
checkpoint gives up. So what such a recomputation begins with passes a barrier (`ops/training/barrier.py`), together
with an element of the newest gradient.

It is told by its gradients being recorded while a backward pass runs. That is so for `create_graph=True` too, which a
barrier does no harm.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..compat.torch import current_graph_task_id as _graph_task
from ..ir.graph import Handle, Node, Value
from ..ir.spec import TensorSpec
from ..tensor.xla_tensor import XLATensor, make


class _Thread(threading.local):
    recomputation: Recomputation | None = None


_thread = _Thread()


class Recomputation:
    """What one recomputation has begun with.

    Attributes:
        task: number of the backward pass.
        token: an element of what was recorded last before it.
        behind: id of a value → the handle of the value behind the barrier. Without it, a program of another thread
            would leave that value out before anything here reads it.
        kept: keeps these ids from being used again.
        nodes: what depends on a value behind a barrier.
    """

    def __init__(self, task: int, token: XLATensor):
        self.task = task
        self.token = token
        self.behind: dict[int, Handle] = {}
        self.kept: list[Value] = []
        self.nodes: set[Node] = set()


def is_running() -> bool:
    """Whether what the calling thread records now is recomputed. Costs 60 ns where no backward pass runs."""
    if _graph_task() == -1:
        return False
    if not torch.is_grad_enabled():
        _thread.recomputation = None  # gradients again: the next recomputation is another one
        return False
    return True


def hold_back(
    inputs: list[Value], specs: Sequence[TensorSpec], pending: Sequence[Node], dispatch: Callable[..., Any]
) -> None:
    """Replaces the inputs of a recomputed operator by what is behind the barrier, where it needs to be: an operator one
    of whose inputs is cannot be found in the forward pass.

    Args:
        specs: of the inputs.
        pending: what is recorded and not executed on the device.
        dispatch: `XLATensor.__torch_dispatch__`, which records the barrier.
    """
    current = _thread.recomputation
    if current is None or current.task != _graph_task():
        token = _token(pending, dispatch)
        if token is None:
            return
        current = _thread.recomputation = Recomputation(_graph_task(), token)
    for number, value in enumerate(inputs):
        behind = current.behind.get(id(value))
        if behind is not None:
            inputs[number] = behind.value
    if any(value.node in current.nodes for value in inputs):
        return
    tensors = []
    once = {id(value): (value, spec) for value, spec in zip(inputs, specs, strict=True)}
    for value, spec in once.values():
        handle = value.owner() if value.owner is not None else None
        tensors.append(make(handle or Handle(value), spec))
    barrier = torch.ops.lazy_runtime.optimization_barrier.default
    _thread.recomputation = None  # the barrier itself is none of it
    with torch.no_grad():
        results = dispatch(XLATensor, barrier, (), ([*tensors, current.token],))
    _thread.recomputation = current
    for (value, _), result in zip(once.values(), results, strict=False):
        current.behind[id(value)] = result.handle
        current.kept.append(value)
        current.nodes.add(result.handle.value.node)
    for number, value in enumerate(inputs):
        inputs[number] = current.behind[id(value)].value


def recorded(node: Node) -> None:
    """Notes an operator of the recomputation."""
    current = _thread.recomputation
    if current is not None and any(value.node in current.nodes for value in node.inputs):
        current.nodes.add(node)


def _token(pending: Sequence[Node], dispatch: Callable[..., Any]) -> XLATensor | None:
    """An element of the newest result that somebody holds."""
    for node in reversed(pending):
        for owner, spec in zip(node.outputs, node.call.outputs, strict=True):
            handle = owner() if owner is not None else None
            if handle is not None and spec is not None and spec.numel:
                newest = make(handle, spec)
                with torch.no_grad():
                    for _ in spec.shape:
                        newest = dispatch(XLATensor, torch.ops.aten.select.int, (), (newest, 0, 0))
                return newest
    return None
