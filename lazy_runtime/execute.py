"""Runs what is pending on a device: dead code out, graph to executable, results bound to the live tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import jax

from . import compiler, config, metrics
from .xla_devices import Device
from .ir import Graph, Handle, Node, Value
from .spec import TensorSpec

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
    needed: set[Node] = set()
    for node in reversed(pending):
        if node not in needed and not any(owner is not None and owner() is not None for owner in node.outputs):
            continue
        needed.add(node)
        for value in node.inputs:
            if value.node is not None:
                needed.add(value.node)
    nodes = [node for node in pending if node in needed]
    if not nodes:
        return ()
    graph, leaves, live = _number(device, nodes)
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


def _number(device: Device, nodes: Sequence[Node]) -> tuple[Graph, list[Value], list[Handle]]:
    """Gives every value of the pending nodes its slot.

    Leaves are numbered as they are met and outputs in the order of recording, so that equal programs give equal
    graphs. Two leaves with one buffer stay two.
    """
    first_slot: dict[Node, int] = {}
    leaf_slot: dict[int, int] = {}
    leaves: list[Value] = []
    leaf_specs: list[TensorSpec] = []
    operands: list[int] = []
    outputs: list[int] = []
    live: list[Handle] = []
    slot = 0
    for node in nodes:
        first_slot[node] = slot
        for position, value in enumerate(node.inputs):
            if value.node is not None:
                operands.append(first_slot[value.node] + value.index)
                continue
            number = leaf_slot.get(id(value))
            if number is None:
                leaves.append(value)
                leaf_specs.append(node.call.inputs[position])
                number = leaf_slot[id(value)] = -len(leaves)
            operands.append(number)
        for owner in node.outputs:
            handle = owner() if owner is not None else None
            if handle is not None:
                outputs.append(slot)
                live.append(handle)
            slot += 1
    donated = _donated(leaves, leaf_specs, live) if config.donation() else ()
    graph = Graph(
        device, tuple([node.call for node in nodes]), tuple(operands), tuple(outputs), tuple(leaf_specs), donated
    )
    return graph, leaves, live


def _donated(leaves: Sequence[Value], specs: Sequence[TensorSpec], live: Sequence[Handle]) -> tuple[int, ...]:
    """Numbers of the leaves that nobody outside the graph can read any more and an output of their kind can take."""
    dead = [
        number
        for number, value in enumerate(leaves)
        if not value.pinned and (value.owner is None or value.owner() is None)
    ]
    if not dead:
        return ()
    room: Counter = Counter()
    for handle in live:
        node = handle.value.node
        assert node is not None
        spec = node.call.outputs[handle.value.index]
        assert spec is not None
        room[spec.shape, spec.dtype] += 1
    donated = []
    for number in dead:
        kind = specs[number].shape, specs[number].dtype
        if room[kind]:
            room[kind] -= 1
            donated.append(number)
    return tuple(donated)
