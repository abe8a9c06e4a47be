"""Parameters are overwritten after all others have read them.

A donated leaf's memory is its update's (`donation.py`), who may write to it once nobody reads the old value any more.
XLA:CPU decides what has to be copied before it has ordered the instructions. An instruction that reads a weight and
does not lead to its update, as the one that makes the gradient for the layer below, might come after it; so XLA copied
every weight of every model at each step. Here the update gets the weight from a call that does nothing, in the
weight's own memory, and waits for those who read it. Nothing becomes wrong if one is forgotten: then XLA copies.

XLA has an analysis of its own that does this (`xla_cpu_copy_insertion_use_region_analysis`). In jaxlib 0.10.2 it also
lets a fused loop overwrite elements that the same loop has yet to read.
"""

from __future__ import annotations

import collections
import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

from ..ir.flat import Flat, Path
from ..lowering import aten_bridge
from .plan import CompilePlan

#: Elements of a leaf from which on a copy costs more than a call.
LEAST = 1 << 14


class DonationOrdering:
    """What the lowering of one graph waits for where.

    Attributes:
        waiting: operator → for those of its operands that are about to be overwritten, which values are made before.
        kept: operator → those of its results that are waited for, by their place among them.
    """

    def __init__(self, plan: CompilePlan):
        self.waiting: dict[Path, dict[int, list[int]]] = collections.defaultdict(dict)
        self.kept: dict[Path, dict[int, int]] = collections.defaultdict(dict)
        self._values: dict[int, Any] = {}
        self._path: Path = ()
        if plan.graph.device.platform == "cpu" and plan.graph.donated and aten_bridge.available():
            self._find(plan)

    def _find(self, plan: CompilePlan) -> None:
        graph, flat, origins = plan.graph, plan.flat, plan.origins
        before = _before(flat)
        readers = _readers(flat)
        for leaf, output in plan.updates.items():
            if math.prod(graph.leaves[leaf].shape) < LEAST or flat.outputs[output] < 0:
                continue
            first = _first(flat, origins, leaf, flat.outputs[output])
            others = [number for number in readers[leaf] if number != first]
            if not others or max(others) > first:
                continue
            latest = [number for number in others if not any(before[other] >> number & 1 for other in others)]
            values = sorted({value for number in latest for value in _sign(flat, before, number, first)})
            operator = flat.operators[first]
            self.waiting[operator.path][operator.operands.index(-1 - leaf)] = values
            for value in values:
                maker = flat.operators[flat.maker[value]]
                self.kept[maker.path][maker.results.index(value)] = value

    @contextlib.contextmanager
    def inside(self, number: int) -> Iterator[None]:
        """Within, operators are those of the graph that is this call."""
        outer, self._path = self._path, (*self._path, number)
        try:
            yield
        finally:
            self._path = outer

    def operands(self, number: int, arrays: list[Any]) -> list[Any]:
        """The operands of an operator as it is to get them."""
        for place, values in self.waiting.get((*self._path, number), {}).items():
            arrays[place] = aten_bridge.after(arrays[place], [self._values[value] for value in values])
        return arrays

    def made(self, number: int, results: Sequence[Any]) -> None:
        """Keeps what is waited for of an operator's results."""
        for place, value in self.kept.get((*self._path, number), {}).items():
            self._values[value] = results[place]


def _readers(flat: Flat) -> dict[int, list[int]]:
    """Leaf → the operators that read its memory, by way of views too."""
    shown = collections.defaultdict(set)  # value → leaves whose memory it shows
    found: dict[int, list[int]] = collections.defaultdict(list)
    for number, operator in enumerate(flat.operators):
        leaves = {-1 - value for value in operator.operands if value < 0}
        leaves.update(*(shown[value] for value in operator.operands if value in shown))
        if operator.call.view:
            for value in operator.results:
                shown[value] = leaves
            continue
        for leaf in leaves:
            found[leaf].append(number)
    return found


def _before(flat: Flat) -> list[int]:
    """For each operator those that lead to it, as bits."""
    before: list[int] = []
    for operator in flat.operators:
        bits = 0
        for value in operator.operands:
            if value >= 0:
                bits |= before[flat.maker[value]] | 1 << flat.maker[value]
        before.append(bits)
    return before


def _first(flat: Flat, origins: dict[int, int], leaf: int, value: int) -> int:
    """The operator that begins to update the leaf, of those that come to this value."""
    while True:
        number = flat.maker[value]
        value = next(each for each in flat.operators[number].operands if origins.get(each) == leaf)
        if value < 0:
            return number


def _sign(flat: Flat, before: list[int], reader: int, first: int) -> list[int]:
    """Values that are there once the reader is done. One that the update needs anyway will do, unless the reader makes
    several, each of which may be an instruction of its own.
    """
    operator = flat.operators[reader]
    made = [value for value, spec in zip(operator.results, operator.call.outputs, strict=True) if spec is not None]
    if len(made) == 1:
        for value in flat.operators[first].operands:
            if value >= 0 and (before[flat.maker[value]] | 1 << flat.maker[value]) >> reader & 1:
                return [value]
    return made
