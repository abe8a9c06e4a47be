"""From recorded nodes to an `ir.Graph`: dead code out, every value its slot, and which buffers may be donated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from ..common import config
from ..ir import scalar_deduplication
from ..ir.graph import Call, Graph, Handle, Node, Value
from ..ir.spec import TensorSpec
from ..platform.xla_devices import Device
from . import deferred_views, donors


class Linearized(NamedTuple):
    """A graph and what it was made from.

    Attributes:
        leaves: the values behind the graph's leaves, in its order.
        live: the handles behind the graph's outputs, in its order.
        nodes: those that the outputs need.
    """

    graph: Graph
    leaves: list[Value]
    live: list[Handle]
    nodes: list[Node]


def linearize(
    device: Device,
    pending: Sequence[Node],
    donate: bool,
    options: tuple[tuple[str, Any], ...] = (),
    wanted: Collection[Handle] | None = None,
    others: Sequence[Node] = (),
) -> Linearized:
    """Numbers what the live handles need, with what that needs of nodes that are on no list: they were in a program
    that failed, or another thread has made them.

    Leaves are numbered as they are met and outputs in the order of recording, so that equal programs give equal
    graphs. Two leaves with one buffer stay two.

    Args:
        donate: give the buffers of leaves that nobody else can read to XLA.
        options: of the XLA compiler.
        wanted: the only handles whose values are outputs; None for all that live.
        others: nodes that stay pending, to which other threads may append meanwhile. What they read is an output too,
            and no buffer of theirs is donated.
    """
    numbered, pending = _number_with_missing(device, pending, donate, options, wanted)
    if others:
        kept = _kept_for(others, pending, numbered)
        if kept:  # and with them is needed what they read
            numbered, _ = _number_with_missing(device, pending, donate, options, wanted)
        del kept  # by now `live` has those that matter
    return numbered


def _number_with_missing(
    device: Device,
    pending: Sequence[Node],
    donate: bool,
    options: tuple[tuple[str, Any], ...],
    wanted: Collection[Handle] | None,
) -> tuple[Linearized, Sequence[Node]]:
    """The numbered graph, and the nodes with those that they need of nodes that are on no list."""
    try:
        return _number(device, pending, donate, options, wanted), pending
    except _MissingError:
        pending = _with_missing(pending)
        return _number(device, pending, donate, options, wanted), pending


def _number(
    device: Device,
    pending: Sequence[Node],
    donate: bool,
    options: tuple[tuple[str, Any], ...],
    wanted: Collection[Handle] | None,
) -> Linearized:
    alone = _SingleCall.of(pending, options) if donate and wanted is None else None
    known = alone and alone.known()
    if known is not None:
        return known
    nodes = needed_nodes(pending, wanted)
    views: frozenset[Node] = frozenset()
    if device.has_views:
        nodes, views = deferred_views.with_views(nodes)
    first_slot: dict[Node, int] = {}
    leaf_slot: dict[int, int] = {}
    leaves: list[Value] = []
    specs: list[TensorSpec] = []
    operands: list[int] = []
    outputs: list[int] = []
    live: list[Handle] = []
    slot = 0
    for node in nodes:
        first_slot[node] = slot
        for position, value in enumerate(node.inputs):
            if value.node is not None:
                if value.node not in first_slot:
                    raise _MissingError
                operands.append(first_slot[value.node] + value.index)
                continue
            number = leaf_slot.get(id(value))
            if number is None:
                leaves.append(value)
                specs.append(node.call.inputs[position])
                number = leaf_slot[id(value)] = -len(leaves)
            operands.append(number)
        for index, owner in enumerate(node.outputs):
            handle = owner() if owner is not None else None
            if handle is None and node.call.collective and wanted is None:
                handle = Handle(Value(node, index))  # else XLA takes the collective out
            if handle is not None and (wanted is None or handle in wanted) and node not in views:
                outputs.append(slot)
                live.append(handle)
            slot += 1
    donated = _donated(leaves, specs, live) if donate and config.donation() else ()
    channels_last = tuple([number for number, value in enumerate(leaves) if value.channels_last])
    shared = scalar_deduplication.of(nodes)
    calls = tuple([node.call for node in nodes])
    graph = Graph(
        device, calls, tuple(operands), tuple(outputs), tuple(specs), donated, channels_last, options, shared=shared
    )
    numbered = Linearized(graph, leaves, live, nodes)
    if alone is not None:
        alone.keep(numbered)
    return numbered


class _MissingError(Exception):
    """A node reads what no node before it gives."""


def _with_missing(pending: Sequence[Node]) -> list[Node]:
    """The nodes, and before each those that it needs and that are not among them."""
    ordered: dict[Node, None] = {}
    for node in pending:
        waiting = [node]
        while waiting:
            read = [value.node for value in waiting[-1].inputs]
            missing = [each for each in read if each is not None and each not in ordered]
            if missing:
                waiting.extend(missing)
            else:
                ordered[waiting.pop()] = None
    return list(ordered)


def _kept_for(others: Sequence[Node], pending: Sequence[Node], numbered: Linearized) -> list[Handle]:
    """Handles without which what other nodes read would not be there when they are executed; none if all is well.

    A thread that records holds the handles of what it reads until its node is on the list. So where a handle was found
    dead, whatever has read its value is on the list by now.
    """
    nodes, live = set(pending), set(numbered.live)
    donated = {id(numbered.leaves[number]) for number in numbered.graph.donated}
    if not any(_is_lost(value, nodes, live, donated) for node in tuple(others) for value in node.inputs):
        return []
    # no handle dies from here on; what those that are dead by now stand for, and others read, gets one again
    owners = [owner for node in pending for owner in node.outputs]
    owners += [value.owner for node in pending for value in node.inputs]
    kept = [handle for owner in owners if owner is not None and (handle := owner()) is not None]
    leaves = {id(value) for node in pending for value in node.inputs if value.node is None}
    for reader in tuple(others):
        for value in reader.inputs:
            if value.owner is not None and value.owner() is not None:
                continue
            node = value.node
            if node is not None and node in nodes:
                kept.append(Handle(value))
                outputs = list(node.outputs)
                outputs[value.index] = value.owner
                node.outputs = outputs
            elif id(value) in leaves:
                kept.append(Handle(value))
    return kept


def _is_lost(value: Value, nodes: set[Node], live: set[Handle], donated: set[int]) -> bool:
    """Whether nobody could read a value once a program has been executed."""
    if value.node in nodes:
        handle = value.owner() if value.owner is not None else None
        return handle not in live
    return id(value) in donated


class _SingleCall(NamedTuple):
    """A call that is a whole graph and pending alone: a training step that is compiled as one, with hundreds of values
    of which the same is true in each step.

    Attributes:
        live: the handles of its results, None for those that nobody can read.
        graphs: what it was numbered as before, by all that this depends on.
        key: what is true now of all that.
    """

    node: Node
    live: list[Handle | None]
    graphs: dict[tuple[Any, ...], Graph]
    key: tuple[Any, ...]

    @classmethod
    def of(cls, pending: Sequence[Node], options: tuple[tuple[str, Any], ...]) -> _SingleCall | None:
        """None if it is not, if two of its arguments are one value, or if one has none since what made it failed."""
        if len(pending) != 1:
            return None
        node, values, nested = pending[0], pending[0].inputs, pending[0].call.nested
        if nested is None or node.call.collective:
            return None
        if len(set(values)) < len(values) or any(value.node is not None for value in values):
            return None
        live = [None if owner is None else owner() for owner in node.outputs]
        key = key_of_single_call(
            tuple([handle is not None for handle in live]),
            tuple([_is_dead(value) for value in values]),
            tuple([value.channels_last for value in values]),
            config.donation(),
            options,
        )
        return cls(node, live, nested.alone, key)

    def known(self) -> Linearized | None:
        """As it was numbered before, when the same was true of its arguments and results."""
        graph = self.graphs.get(self.key)
        if graph is None:
            return None
        return Linearized(
            graph, list(self.node.inputs), [handle for handle in self.live if handle is not None], [self.node]
        )

    def keep(self, numbered: Linearized) -> None:
        if numbered.nodes == [self.node]:
            self.graphs[self.key] = numbered.graph


def key_of_single_call(
    live: tuple[bool, ...],
    dead: tuple[bool, ...],
    channels_last: tuple[bool, ...],
    donates: bool,
    options: tuple[tuple[str, Any], ...],
) -> tuple[Any, ...]:
    """What a graph that is pending alone is found by in `Nested.alone`.

    Args:
        live: for each of its results, whether somebody can read it.
        dead: for each of its arguments, whether nobody else can.
        channels_last: for each of its arguments, whether its buffer holds dimension 1 last.
    """
    return live, dead, channels_last, donates, options


def of_call(call: Call, values: Sequence[Value], ints: Sequence[int]) -> Linearized:
    """The graph that is one call of these values."""
    slots = tuple(range(-1, -1 - len(values), -1))
    graph = Graph(call.device, (call,), slots, tuple(range(len(call.outputs))), call.inputs, ())
    return Linearized(graph, list(values), [], [Node(call, values, (), ints)])


def needed_nodes(pending: Sequence[Node], wanted: Collection[Handle] | None = None) -> list[Node]:
    """The nodes that live handles (or only the wanted ones) depend on, in order, with those that have no results, which
    are there to raise, and collectives: other ranks wait at them, where a result may live longer.
    """
    needed: set[Node] = set()
    for node in reversed(pending):
        if (
            node not in needed
            and node.outputs
            and not (node.call.collective and wanted is None)
            and not any(
                owner is not None and (handle := owner()) is not None and (wanted is None or handle in wanted)
                for owner in node.outputs
            )
        ):
            continue
        needed.add(node)
        for value in node.inputs:
            if value.node is not None:
                needed.add(value.node)
    return [node for node in pending if node in needed]


def _donated(leaves: Sequence[Value], specs: Sequence[TensorSpec], live: Sequence[Handle]) -> tuple[int, ...]:
    """Numbers of the leaves that nobody outside the graph can read any more and an output of their kind can take."""
    dead = [number for number, value in enumerate(leaves) if _is_dead(value)]
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


def _is_dead(value: Value) -> bool:
    """Whether nobody outside of the graph can read it, or its user has given it away, and its buffer is as others
    are.
    """
    if value.pinned or value.channels_last:
        return False
    is_dead = value.owner is None or value.owner() is None
    return donors.thread.takes_dead if is_dead else donors.is_given(value)
