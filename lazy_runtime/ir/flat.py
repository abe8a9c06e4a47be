"""A graph as a list of operators: what is a graph in it is taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .graph import Call, Graph

#: Where an operator stands: its number in the graph, or that of the graph it is in and its number there.
Path = tuple[int, ...]


class Operator(NamedTuple):
    """An operator application between values.

    Attributes:
        path: where it stands.
        call: what it does.
        operands: values, those of leaves as in a graph: -1 - the leaf's number.
        results: values.
    """

    path: Path
    call: Call
    operands: Sequence[int]
    results: range


class Flat:
    """The operators of a graph, in order, and the values that it gives. A value made later has a larger number.

    Attributes:
        operators: all of them.
        outputs: the values of the graph's outputs.
        maker: value → the number of the operator that made it.
    """

    def __init__(self, graph: Graph):
        self.operators: list[Operator] = []
        self.maker: list[int] = []
        self.outputs = self._add(graph, range(-1, -1 - len(graph.leaves), -1), ())

    def _add(self, graph: Graph, leaves: Sequence[int], path: Path) -> list[int]:
        """Takes in the graph's operators; gives the values of its outputs."""
        slots: list[int] = []
        position = 0

        def value(slot: int) -> int:
            return slots[slot] if slot >= 0 else leaves[-1 - slot]

        for number, call in enumerate(graph.calls):
            operands = [value(slot) for slot in graph.operands[position : position + len(call.inputs)]]
            position += len(call.inputs)
            here = (*path, number)
            if call.nested is not None:
                slots.extend(self._add(call.nested.graph, operands, here))
                continue
            results = range(len(self.maker), len(self.maker) + len(call.outputs))
            self.maker.extend([len(self.operators)] * len(results))
            self.operators.append(Operator(here, call, operands, results))
            slots.extend(results)
        return [value(slot) for slot in graph.outputs]
