"""Runs what is pending on a device: graph to executable, results bound to the live tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from . import checks, compiler, config, dtypes, lower, metrics, numbering
from .ir import Node, Value
from .xla_devices import Device

#: Eager mode: every operator is executed as soon as it is recorded.
eager = config.eager()

#: Called with what is about to cut the pending graph in two (a read, a sync): `experimental.compiling` raises from it
#: where a graph must stay whole.
before_cut: Callable[[str], None] | None = None


def sync(device: Device, wait: bool = False) -> None:
    """Executes everything pending on `device` as one program, asynchronously unless `wait`.

    Tensors that nobody can read any more are not computed, and their buffers are reused for the outputs.

    Raises:
        what went wrong in an earlier execution (`checks.py`): what is pending stays pending.
    """
    device.raise_failures()
    with device.lock:
        # the list itself stays: another thread may be about to append to it
        pending = device.pending[:]
        del device.pending[: len(pending)]
        try:
            if pending:
                _run(device, pending)
        except lower.LoweringError as error:
            # the rest is not lost with it
            device.pending[:0] = _without({node for node in pending if node.call is error.call}, pending)
            raise
        except _KernelError as error:
            device.pending[:0] = _without({error.node}, pending)
            raise error.meaning from None
        except BaseException:
            device.pending[:0] = pending
            raise
        while pending:  # newest first: nothing else holds it, so a long chain is not freed by deep recursion
            pending.pop()
    if wait:
        device.wait()


def array_of(value: Value, device: Device, channels_last: bool = False) -> jax.Array:
    """The value's device buffer, after running what is pending if it has none yet.

    Args:
        channels_last: the order of dimensions that it is wanted in; by default torch's.
    """
    if value.array is None:
        if before_cut is not None:
            before_cut("a value is read")
        sync(device)
    array = value.array
    if array is None:
        raise RuntimeError("the tensor has no value: the program that was to compute it failed")
    if value.channels_last is not channels_last:
        with dtypes.x64():
            array = value.array = jnp.moveaxis(array, 1, -1) if channels_last else jnp.moveaxis(array, -1, 1)
        value.channels_last = channels_last
    return array


class _KernelError(Exception):
    """A kernel that a program calls has failed before control returned.

    Attributes:
        node: its call.
        meaning: what the user gets.
    """

    def __init__(self, node: Node, meaning: Exception):
        super().__init__(str(meaning))
        self.node = node
        self.meaning = meaning


def _without(failed: set[Node], pending: Sequence[Node]) -> list[Node]:
    """The pending nodes but for the failed ones, what depends on them, and what reads a buffer that was donated to the
    failed program."""
    lost: set[Node | None] = set(failed)
    for node in pending:
        for value in node.inputs:
            if value.node in lost if value.node is not None else value.array is None or value.array.is_deleted():
                lost.add(node)
    return [node for node in pending if node not in lost]


def _run(device: Device, pending: Sequence[Node]) -> None:
    graph, leaves, live, nodes = numbering.number(device, pending, donate=True)
    if not nodes:
        return
    floats = [number for node in nodes for number in node.floats]
    ints = [number for node in nodes for number in node.ints]
    executable = compiler.executable(graph, keep_layout=None)
    lines = {number: nodes[number].line for number in executable.fallible}
    try:
        results = executable([value.array for value in leaves], floats, ints, lines)  # type: ignore[misc]
    except jax.errors.JaxRuntimeError as error:
        found = checks.kernel_error(error, graph, lines)
        if found is None:
            raise
        raise _KernelError(nodes[found.call], found.meaning) from None
    metrics.count("ExecuteComputation")
    for handle, array, channels_last in zip(live, results, executable.physical, strict=True):
        value = handle.value
        value.array = array
        value.channels_last = channels_last
        value.node = None
    if eager and lines:
        device.wait()
