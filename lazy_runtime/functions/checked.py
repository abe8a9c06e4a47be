"""A graph that a lowering evaluates inside of a loop or a branch, where nobody outside sees what it checks.

So it gives its flag (`checks.Collector.flag`) along with its results, and the call around it checks that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from ..compilation import lower
from ..ir.graph import Graph
from ..lowering import checks


class CheckedGraph:
    """What the functions of loops and branches have in common.

    Attributes:
        graph: what is evaluated.
        checks: what the latest trace by jax checks.
    """

    def __init__(self, graph: Graph):
        self.graph = graph
        self.checks: list[checks.Check] = []

    def evaluated(self, leaves: Sequence[Any], ints: Sequence[Any] = ()) -> tuple[list[Any], Any]:
        """The graph's outputs and its flag, within a trace of jax's. Errors name the call around it.

        Args:
            leaves: arrays of the graph's leaves.
            ints: `graph.ints` seeds.
        """
        outer = checks.current_call()
        with checks.collecting() as inner:
            found = lower.evaluate(self.graph, leaves, (), ints, number_of=lambda _: outer)
            flag = inner.flag() if inner.checks else nothing_failed()
        self.checks = inner.checks
        return found, flag

    def require(self, flag: Any) -> None:
        """Hands on, to the program around it, what it has checked."""
        for number, check in enumerate(self.checks):
            checks.require(flag[0] != number, check.error, flag[1])


def nothing_failed() -> Any:
    """The flag of a function that checks nothing."""
    return jnp.array((-1, 0), jnp.int64)


def first_failed(earlier: Any, flag: Any) -> Any:
    """The flag of the turn of a loop in which something has failed first."""
    return jnp.where(earlier[0] >= 0, earlier, flag)
