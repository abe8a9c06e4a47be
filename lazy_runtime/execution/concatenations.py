"""Concatenations that a program need not make, since it reads slices of single pieces of them at most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..ir.graph import Call, Node, Value
from ..ir.spec import TensorSpec
from ..ops.registry import Operator
from . import host_evaluation

NAME = "aten::cat"
_SLICE = "aten::slice_copy.Tensor"
_SELECT = "aten::select_copy.int"


def _not_installed(
    operator: Operator, values: Sequence[Value], specs: Sequence[TensorSpec], arguments: Callable[..., Any]
) -> Node:
    raise RuntimeError("no operator has been recorded yet")


#: Makes a node that no list has, of an operator on values of these specs and what a function makes of their tensors:
#: the arguments and keywords of the operator (`recording/dispatch.py`).
record_aside: Callable[
    [Operator, Sequence[Value], Sequence[TensorSpec], Callable[[Sequence[Any]], tuple[list[Any], dict[str, Any]]]], Node
] = _not_installed


def pieces(call: Call, inputs: Sequence[Any]) -> tuple[list[Any], int]:
    """What a concatenation puts together, and its dimension, from the front."""
    assert call.arguments is not None
    args, kwargs = call.arguments(inputs, (), ())
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    return args[0], dim % len(call.inputs[0].shape)


def split(
    nodes: Sequence[Node], needed: set[Node], computed: set[int], others: Sequence[Node]
) -> tuple[list[Node], list[Node]]:
    """The nodes without those concatenations that grow and that a program of them need not make; and of these, the ones
    that somebody can read. Slices of them become slices of their pieces.

    Args:
        needed: what is needed of the nodes.
        computed: identities of values that were computed outside of a program.
        others: nodes of other threads, to which these append meanwhile.
    """
    readers: dict[Node, list[Node]] = {node: [] for node in nodes if node.call.grows and node in needed}
    for node in nodes:
        for value in node.inputs if node in needed else ():
            if value.node is not None and value.node in readers:
                readers[value.node].append(node)
    left: set[Node] = set()
    spared: set[Node] = set()
    slices: set[Node] = set()
    for cat in reversed(readers):
        narrowed = [(reader, _narrowed(reader, cat)) for reader in readers[cat] if reader not in left]
        if any(node is None for _, node in narrowed):
            continue
        for reader, node in narrowed:
            _become(reader, node)
            slices.add(reader)
            (piece,) = reader.inputs
            if piece.node is not None and piece.node in readers:  # it is a concatenation itself
                readers[piece.node].append(reader)
        spared.add(cat)
        if (
            host_evaluation.handle_of(cat) is not None
            or len(narrowed) < len(readers[cat])
            or any(value.node is cat for node in tuple(others) for value in node.inputs)
        ):
            left.add(cat)
    to_run = [node for node in nodes if node not in spared]
    for node in to_run:
        if node in needed:
            _forget_strides(node, computed, slices)
    return to_run, [node for node in nodes if node in left]


def _become(node: Node, other: Node | None) -> None:
    """Has a node do what another one does."""
    assert other is not None
    node.call, node.inputs, node.floats, node.ints = other.call, other.inputs, other.floats, other.ints


def _narrowed(reader: Node, cat: Node) -> Node | None:
    """A node that takes from one piece of a concatenation what `reader` takes from the whole; None if it takes more."""
    call = reader.call
    if call.name not in (_SLICE, _SELECT) or call.arguments is None or call.meaning is None:
        return None
    (_, *given), _ = call.arguments(reader.inputs, (), ())
    values, dim = pieces(cat.call, cat.inputs)
    specs, _ = pieces(cat.call, cat.call.inputs)
    taken = _taken(call, given)
    if given[0] % len(call.inputs[0].shape) != dim or not taken:
        return None
    begin = number = 0
    while taken[0] >= begin + specs[number].shape[dim]:
        begin += specs[number].shape[dim]
        number += 1
    if taken[-1] >= begin + specs[number].shape[dim]:
        return None
    bounds = [index - begin for index in ((taken[0],) if call.name == _SELECT else (taken[0], taken[-1] + 1))]
    found = record_aside(
        call.meaning[0], [values[number]], [specs[number]], lambda tensors: ([*tensors, dim, *bounds], {})
    )
    return found if _same_arrays(found.call, call) else None


def _taken(call: Call, given: Sequence[Any]) -> range:
    """Which indices of its dimension a slice or a selection takes; none if there are gaps between them."""
    size = call.inputs[0].shape[given[0]]
    if call.name == _SELECT:
        return range(size)[given[1] : given[1] + 1 or None]
    start, stop, step = (*given[1:], None, None, None)[:3]
    return range(size)[start:stop] if step in (None, 1) else range(0)


def _forget_strides(node: Node, computed: set[int], slices: set[Node]) -> None:
    """A slice of something that grows has strides and an offset that tell its length, which are a part of the calls
    that read it. Its array has neither; so a call becomes one that reads a tensor without them.
    """
    call, make = node.call, node.call.arguments
    if make is None or call.meaning is None or call.random or call.name.startswith(host_evaluation.MEMORY):
        return
    specs = [
        TensorSpec.of(spec.device, spec.dtype, spec.shape) if value.node in slices or id(value) in computed else spec
        for value, spec in zip(node.inputs, call.inputs, strict=True)
    ]
    if any(spec is not seen for spec, seen in zip(specs, call.inputs, strict=True)):
        other = record_aside(call.meaning[0], node.inputs, specs, lambda tensors: make(tensors, node.floats, node.ints))
        if _same_arrays(other.call, call):
            if other.call.outputs != call.outputs:
                slices.add(node)
            _become(node, other)


def _same_arrays(call: Call, other: Call) -> bool:
    """Whether the results of two calls differ by their strides at most, which their arrays do not have."""
    kinds = [[spec and (spec.shape, spec.dtype) for spec in each.outputs] for each in (call, other)]
    return kinds[0] == kinds[1]
