"""Which numbers of a program are one.

A number that may change from step to step is an input of the program (`dispatch.py`): the learning rate is one for each
parameter that it multiplies. XLA compiles equal instructions once, and updates that read different inputs are not
equal: the step of a BERT with 197 parameters took 9.9 s to compile, and takes 2.5 s with one input for equal numbers.

Numbers that were equal may differ later. Then the program is another one; but where several differ in this alone, each
number gets its own input for good.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from .graph import Graph, Node

#: In how many calls of an operator a number must be for it to be one input: as in a loop over parameters. Fewer cost
#: little, and may be equal by chance.
LEAST = 16

#: How many programs may differ in this alone.
MOST = 2

_programs: Counter[Graph] = Counter()  # by graph without shared numbers


def of(nodes: Sequence[Node]) -> tuple[int, ...]:
    """`Graph.shared` by the numbers' present values.

    Ranks' numbers may differ where their programs must not: theirs are never shared.
    """
    keys = [(node.call.name, place, number) for node in nodes for place, number in enumerate(node.floats)]
    if len(keys) < LEAST or any(node.call.collective for node in nodes):
        return ()
    counts = Counter(keys)
    known: dict[Any, int] = {}
    shared = [known.setdefault(key if counts[key] >= LEAST else own, len(known)) for own, key in enumerate(keys)]
    return tuple(shared) if len(known) < len(keys) else ()


def deduplicated(graph: Graph) -> Graph:
    """The graph, as it is to be compiled."""
    if not graph.shared:
        return graph
    own = graph._replace(shared=())
    if _programs[own] >= MOST:
        return own
    _programs[own] += 1
    return graph


def values(nodes: Sequence[Node], graph: Graph) -> list[float]:
    """The numbers that the program of a graph gets.

    Args:
        graph: as it was compiled.
    """
    numbers = [number for node in nodes for number in node.floats]
    return list(dict(zip(graph.shared, numbers, strict=True)).values()) if graph.shared else numbers


def forget_program(graph: Graph) -> None:
    """Forgets one of them."""
    _programs.pop(graph._replace(shared=()), None)


def forget() -> None:
    """Forgets which programs there are."""
    _programs.clear()
