"""What a greatest or least element is looked for in has one value for all who read it.

Torch's gradients of `amax`, `max()`, maximum norms and their like ask which elements equal the result. XLA:CPU computes
cheap operators again in each loop that reads them, and LLVM contracts a product and a sum to one rounding in some of
these loops and not in others. The element that gave the result would then equal none, and have no gradient. So those
elements are put into memory first.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax

from ..ir.graph import Call, Graph
from . import aten_bridge
from .layout import ChannelsLast

_ALWAYS = frozenset({"aten::amax", "aten::amin", "aten::max", "aten::min", "aten::aminmax"})
_NORMS = frozenset(
    {"aten::linalg_vector_norm", "aten::norm.Scalar", "aten::norm.ScalarOpt_dim", "aten::_foreach_norm.Scalar"}
)
_COMPARISONS = frozenset({"aten::eq.Tensor", "aten::ne.Tensor"})


def searched(graph: Graph) -> dict[int, list[int]]:
    """For the number of a call, the slots of its operands that must have one value from there on."""
    calls = {number for number, call in enumerate(graph.calls) if _looks_for_extremum(call)}
    if not calls:
        return {}
    is_compared = any(call.name in _COMPARISONS or call.nested is not None for call in graph.calls)
    readers = Counter(graph.operands)
    outputs = set(graph.outputs)  # which another graph may compare: that of the backward pass
    found: dict[int, list[int]] = {}
    start = 0
    for number, call in enumerate(graph.calls):
        operands = graph.operands[start : start + len(call.inputs)]
        start += len(call.inputs)
        if number in calls:
            found[number] = [
                slot
                for slot, spec in zip(operands, call.inputs, strict=True)
                if slot >= 0 and spec.dtype.is_floating_point
                if slot in outputs or (is_compared and readers[slot] > 1)
            ]
    return found


def _looks_for_extremum(call: Call) -> bool:
    if call.name in _NORMS:
        return "inf" in repr(call.meaning)
    return call.name in _ALWAYS


def fixed(x: Any) -> Any:
    """A value in memory: who reads it gets the same bits."""
    if isinstance(x, ChannelsLast):
        return ChannelsLast(fixed(x.physical))
    if not isinstance(x, jax.Array):
        return x
    return aten_bridge.after(x, ()) if aten_bridge.available() else jax.lax.optimization_barrier(x)
