"""Which result takes the memory of which donated leaf.

jax gives the k-th donated argument of a kind (sizes and dtype) to the k-th result of that kind. In a training step the
kinds repeat: a gradient that the user may still read, or the momentum, would get the memory of its parameter, or of
another layer's, and XLA would copy each parameter first, since the old value is still wanted when the new owner is
written. So the results are put in an order in which each update comes back to where the old value lies.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import NamedTuple

from .ir import Call, Graph
from .spec import TensorSpec


def order(graph: Graph) -> tuple[int, ...] | None:
    """The order in which the results are to stand, as numbers of the graph's outputs; None for as they are."""
    if not graph.donated:
        return None
    specs = graph.output_specs()
    donated = set(graph.donated)
    found = [(origin, number) for number, origin in enumerate(_origins(graph)) if origin is not None]
    # what was made last: a gradient may look like an update as well, where a weight is multiplied by one of its kind
    updates = {origin.leaf: number for origin, number in sorted(found) if origin.leaf in donated}
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
    places = tuple([wanted[_kind(spec)].popleft() for spec in specs])
    return None if places == tuple(range(len(places))) else places


def _kind(spec: TensorSpec) -> tuple:
    return spec.shape, spec.dtype


class _Origin(NamedTuple):
    """Of a tensor: the leaf that it seems to be an update of, and when it was made, by the numbers of the calls."""

    leaf: int
    when: tuple[int, ...] = ()


def _origins(graph: Graph) -> list[_Origin | None]:
    """Those of the outputs. In-place operators of torch's have what they update first among their operands, and those
    that update several tensors have them in the order of the results."""
    slots: list[_Origin | None] = []
    position = 0
    for number, call in enumerate(graph.calls):
        operands = graph.operands[position : position + len(call.inputs)]
        position += len(call.inputs)
        origins = [slots[slot] if slot >= 0 else _Origin(-1 - slot) for slot in operands]
        results = _results(call, origins)
        slots.extend([result and _Origin(result.leaf, (number, *result.when)) for result in results])
    return [slots[slot] if slot >= 0 else _Origin(-1 - slot) for slot in graph.outputs]


def _results(call: Call, origins: Sequence[_Origin | None]) -> Sequence[_Origin | None]:
    """The origins of a call's results, from those of its operands; when they were made is counted within the call."""
    if call.nested is not None:
        pairs = [(inner, inner and origins[inner.leaf]) for inner in _origins(call.nested.graph)]
        return [_Origin(outer.leaf, inner.when) if inner and outer else None for inner, outer in pairs]
    if "_backward" in call.name:  # gradients, some in the likeness of a weight among the operands
        return [None] * len(call.outputs)
    candidates: dict[tuple, collections.deque[int]] = collections.defaultdict(collections.deque)
    for spec, origin in zip(call.inputs, origins, strict=True):
        # a fused optimizer has the gradients behind the parameters
        if origin is not None and origin.leaf not in candidates[_kind(spec)]:
            candidates[_kind(spec)].append(origin.leaf)
    return [
        None if spec is None or not candidates[_kind(spec)] else _Origin(candidates[_kind(spec)].popleft())
        for spec in call.outputs
    ]
