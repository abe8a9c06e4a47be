"""Which result takes the memory of which donated leaf.

jax gives the k-th donated argument of a kind (sizes and dtype) to the k-th result of that kind. In a training step the
kinds repeat: a gradient that the user may still read, or the momentum, would get the memory of its parameter, or of
another layer's, and XLA would copy each parameter first, since the old value is still wanted when the new owner is
written. So the results are put in an order in which each update comes back to where the old value lies.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence

from .ir import Call, Graph
from .spec import TensorSpec


def order(graph: Graph) -> tuple[int, ...] | None:
    """The order in which the results are to stand, as numbers of the graph's outputs; None for as they are."""
    if not graph.donated:
        return None
    specs = graph.output_specs()
    donated = set(graph.donated)
    updates: dict[int, int] = {}  # leaf → its update
    for number, leaf in enumerate(_origins(graph)):
        if leaf is not None and leaf in donated:
            updates.setdefault(leaf, number)
    taken = set(updates.values())
    free: dict[tuple, collections.deque[int]] = collections.defaultdict(collections.deque)
    for number, spec in enumerate(specs):
        if number not in taken:
            free[_kind(spec)].append(number)
    wanted: dict[tuple, collections.deque[int]] = collections.defaultdict(collections.deque)
    for leaf in graph.donated:
        kind = _kind(graph.leaves[leaf])
        update = updates.get(leaf)
        if update is not None:
            wanted[kind].append(update)
        elif free[kind]:
            wanted[kind].append(free[kind].popleft())
    for kind, rest in free.items():
        wanted[kind].extend(rest)
    found = tuple([wanted[_kind(spec)].popleft() for spec in specs])
    return None if found == tuple(range(len(found))) else found


def _kind(spec: TensorSpec) -> tuple:
    return spec.shape, spec.dtype


def _origins(graph: Graph) -> list[int | None]:
    """For each output the number of the leaf that it seems to be an update of: in-place operators of torch's have what
    they update first among their operands, and those that update several tensors have them in the order of the
    results. A gradient comes from no leaf of its kind."""
    slots: list[int | None] = []
    position = 0
    for call in graph.calls:
        operands = graph.operands[position : position + len(call.inputs)]
        position += len(call.inputs)
        slots.extend(_results(call, [slots[slot] if slot >= 0 else -1 - slot for slot in operands]))
    return [slots[slot] if slot >= 0 else -1 - slot for slot in graph.outputs]


def _results(call: Call, origins: Sequence[int | None]) -> Sequence[int | None]:
    """The origins of a call's results, from those of its operands."""
    if call.nested is not None:
        return [None if leaf is None else origins[leaf] for leaf in _origins(call.nested.graph)]
    candidates: dict[tuple, collections.deque[int]] = collections.defaultdict(collections.deque)
    for spec, origin in zip(call.inputs, origins, strict=True):
        if origin is not None:
            candidates[_kind(spec)].append(origin)
    return [
        None if spec is None or not candidates[_kind(spec)] else candidates[_kind(spec)].popleft()
        for spec in call.outputs
    ]
