"""Runs what is pending on a device: graph to executable, results bound to the live tensors."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from . import compiler, config, metrics, numbering
from .ir import Node, Value
from .xla_devices import Device

#: Eager mode: every operator is executed as soon as it is recorded.
eager = config.eager()


def sync(device: Device, wait: bool = False) -> None:
    """Executes everything pending on `device` as one program, asynchronously unless `wait`.

    Tensors that nobody can read any more are not computed, and their buffers are reused for the outputs.
    """
    with device.lock:
        pending, device.pending = device.pending, []
        try:
            outputs = _run(device, pending) if pending else ()
        except BaseException:
            device.pending[:0] = pending  # nothing is lost: what cannot run stays pending while somebody holds it
            raise
        while pending:  # newest first: nothing else holds it, so a long chain is not freed by deep recursion
            pending.pop()
    if wait:
        jax.block_until_ready(outputs)


def array_of(value: Value, device: Device) -> jax.Array:
    """The value's device buffer, after running what is pending if it has none yet."""
    if value.array is None:
        sync(device)
    array = value.array
    assert array is not None, "a value of another device or a dead one was asked for"
    return array


def _run(device: Device, pending: Sequence[Node]) -> Sequence[jax.Array]:
    graph, leaves, live, nodes = numbering.number(device, pending, donate=True)
    if not nodes:
        return ()
    floats = [number for node in nodes for number in node.floats]
    ints = [number for node in nodes for number in node.ints]
    executable = compiler.executable(graph)
    results = executable([value.array for value in leaves], floats, ints)  # type: ignore[misc]
    metrics.count("ExecuteComputation")
    for handle, array in zip(live, results, strict=True):
        value = handle.value
        value.array = array
        value.node = None
    return results
