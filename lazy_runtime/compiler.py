"""`ir.Graph` → executable, once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from . import dtypes, lower, metrics
from .ir import Graph


class Executable:
    """A compiled graph. Calling it starts the execution and returns at once; the results are jax arrays."""

    __slots__ = ("compiled", "floats", "graph", "ints")

    def __init__(self, graph: Graph, compiled: jax.stages.Compiled):
        self.graph = graph
        self.compiled = compiled
        self.floats = graph.floats
        self.ints = graph.ints

    def __call__(self, leaves: Sequence[jax.Array], floats: Sequence[float] = (), ints: Sequence[int] = ()) -> list[Any]:
        """Runs on the leaves' buffers, in the graph's order; donated ones are gone afterwards.

        Args:
            floats, ints: the scalars of the graph's calls in order.
        """
        if not self.floats and not self.ints:
            return self.compiled(*leaves)
        arguments: list[Any] = list(leaves)
        if self.floats:
            arguments.append(np.array(floats, dtype=np.float64))
        if self.ints:
            arguments.append(np.array(ints, dtype=np.int64))
        with dtypes.x64():  # else jax narrows the numpy vectors
            return self.compiled(*arguments)


_executables: dict[Graph, Executable] = {}
_lock = threading.Lock()


def executable(graph: Graph) -> Executable:
    """The executable of a graph, compiled if it is not known yet."""
    found = _executables.get(graph)
    if found is not None:
        metrics.count("CachedCompile")
        return found
    metrics.count("UncachedCompile")
    found = Executable(graph, compile_graph(graph))
    with _lock:
        return _executables.setdefault(graph, found)


def compile_graph(graph: Graph) -> jax.stages.Compiled:
    """Traces the graph with jax and compiles it with XLA for the graph's device."""
    arguments: list[Any] = [spec.aval() for spec in graph.leaves]
    sharding = graph.device.sharding
    if graph.floats:
        arguments.append(jax.ShapeDtypeStruct((graph.floats,), np.float64, sharding=sharding))
    if graph.ints:
        arguments.append(jax.ShapeDtypeStruct((graph.ints,), np.int64, sharding=sharding))
    with dtypes.x64():
        function = jax.jit(lower.to_function(graph), donate_argnums=graph.donated)
        return function.lower(*arguments).compile()


def clear() -> None:
    """Forgets every executable."""
    with _lock:
        _executables.clear()
