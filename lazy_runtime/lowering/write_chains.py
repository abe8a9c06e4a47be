"""Where a chain of writes into parts of one tensor is cut.

A write through a view is a join of what lies before the part, the part, and what lies after it. XLA:CPU fuses writes
that follow each other into one loop, whose code it emits by recursion: a thousand overflow the stack of its thread, and
the search for what to fuse takes the square of their number. A value in memory ends the fusion.
"""

from __future__ import annotations

from ..ir.graph import Graph

_WRITES = frozenset({"aten::slice_scatter", "aten::select_scatter"})

#: Writes of which one computes on what the one before has left, before that is put into memory.
LONGEST = 32


def ends(graph: Graph) -> set[int]:
    """The numbers of the calls whose results are put into memory."""
    if sum(call.name in _WRITES for call in graph.calls) <= LONGEST:
        return set()
    found: set[int] = set()
    lengths: list[int] = []  # of the chain behind each slot
    start = 0
    for number, call in enumerate(graph.calls):
        operands = graph.operands[start : start + len(call.inputs)]
        start += len(call.inputs)
        length = max((lengths[slot] for slot in operands if slot >= 0), default=0)
        if call.name in _WRITES:
            length += 1
            if length > LONGEST:
                found.add(number)
                length = 0
        lengths += [length] * len(call.outputs)
    return found
