"""Calls that are no operators of the table: interned, recorded where operators are, executed at once in eager mode."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from ..cache.disk_key import UncacheableError
from ..compilation import compiler
from ..execution import execute
from ..ir.graph import Call, Node
from ..ops import registry
from ..platform.xla_devices import Device
from ..recording import dispatch
from ..tensor.xla_tensor import XLATensor, make, to_functional

_calls: dict[tuple, Call] = registry.interned()


def intern(key: tuple[Hashable, ...], make_call: Callable[[], Call], digest: Callable[[], str]) -> Call:
    """The call of this key, made if there is none.

    Args:
        digest: what it is found by on disk; may raise `UncacheableError`.
    """
    found = _calls.get(key)
    if found is None:
        found = make_call()
        try:
            found.digest = digest().encode()
        except UncacheableError:
            found.digest = None
        found = _calls.setdefault(key, found)
        compiler.called()
    return found


def record(call: Call, operands: Sequence[XLATensor], seeds: Sequence[int] | None = None) -> list[XLATensor]:
    """Appends a call to the calling thread's trace or its device's pending graph; in eager mode it is executed.

    Args:
        operands: one for each of `call.inputs`.
        seeds: one for each of `call.ints`; by default the device's next ones.

    Returns:
        its results.
    """
    values = [operand.handle.value for operand in operands]
    if dispatch.current_trace() is not None:
        return dispatch.record_in_trace(call, values)
    device: Device = call.device
    ints = seeds if seeds is not None else device.random.draw(call.ints) if call.ints else []
    if execute.eager:
        node = Node(call, values, (), ints)
        handles = dispatch.handles_of(node)
        dispatch.keep_line(node)
        execute.run_at_once(device, node)
    else:
        handles = dispatch.record_graph(call, values, ints)
    specs: Any = call.outputs
    return [make(handle, spec) for handle, spec in zip(handles, specs, strict=True)]


def to_user(found: Sequence[XLATensor]) -> list[torch.Tensor]:
    """Results as users hold them."""
    return [to_functional(each) for each in found]
