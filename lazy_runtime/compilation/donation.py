"""Which result takes the memory of which donated leaf.

jax gives the k-th donated argument of a kind (sizes and dtype) to the k-th result of that kind. In a training step the
kinds repeat: a gradient that the user may still read, or the momentum, would get the memory of its parameter, or of
another layer's, and XLA would copy each parameter first, since the old value is still wanted when the new owner is
written. So the results are put in an order in which each update comes back to where the old value lies.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence

from ..ir.flat import Flat
from ..ir.graph import Call, Graph
from ..ir.spec import TensorSpec


def order(graph: Graph, found: Mapping[int, int]) -> tuple[int, ...] | None:
    """The order in which the results are to stand, as numbers of the graph's outputs; None for as they are.

    Args:
        found: what `updates` gives.
    """
    specs = graph.output_specs()
    taken = set(found.values())
    free: dict[tuple, collections.deque[int]] = collections.defaultdict(collections.deque)
    for number, spec in enumerate(specs):
        if number not in taken:
            free[_kind(spec)].append(number)
    wanted: dict[tuple, collections.deque[int]] = collections.defaultdict(collections.deque)
    for leaf in graph.donated:
        kind = _kind(graph.leaves[leaf])
        if leaf in found:
            wanted[kind].append(found[leaf])
        elif free[kind]:
            wanted[kind].append(free[kind].popleft())
    for kind, rest in free.items():
        wanted[kind].extend(rest)
    places = tuple([wanted[_kind(spec)].popleft() for spec in specs])
    return None if places == tuple(range(len(places))) else places


def updates(graph: Graph, flat: Flat, origin: Mapping[int, int]) -> dict[int, int]:
    """Donated leaf → the number of the output that updates it. Of several that seem to, it is the one made last: a
    gradient looks like an update as well, where a weight is multiplied by one of its kind.

    Args:
        origin: what `origins` gives.
    """
    donated = set(graph.donated)
    made = sorted((value, number) for number, value in enumerate(flat.outputs))
    pairs = [(origin.get(value), number) for value, number in made]
    return {leaf: number for leaf, number in pairs if leaf in donated}


def origins(graph: Graph, flat: Flat) -> dict[int, int]:
    """Value → the leaf that it seems to be an update of, if there is one. In-place operators of torch's have what they
    update first among their operands, and those that update several tensors have them in the order of the results.
    """
    found = {-1 - leaf: leaf for leaf in range(len(graph.leaves))}
    for operator in flat.operators:
        results = _results(operator.call, [found.get(value) for value in operator.operands])
        found.update({v: leaf for v, leaf in zip(operator.results, results, strict=True) if leaf is not None})
    return found


def _results(call: Call, origins: Sequence[int | None]) -> Sequence[int | None]:
    """The origins of an operator's results, from those of its operands."""
    if "_backward" in call.name:  # gradients, some in the likeness of a weight among the operands
        return [None] * len(call.outputs)
    candidates: dict[tuple, collections.deque[int]] = collections.defaultdict(collections.deque)
    for spec, origin in zip(call.inputs, origins, strict=True):
        # a fused optimizer has the gradients behind the parameters
        if origin is not None and origin not in candidates[_kind(spec)]:
            candidates[_kind(spec)].append(origin)
    return [
        None if spec is None or not candidates[_kind(spec)] else candidates[_kind(spec)].popleft()
        for spec in call.outputs
    ]


def _kind(spec: TensorSpec) -> tuple:
    return spec.shape, spec.dtype
