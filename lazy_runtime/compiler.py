"""`ir.Graph` → executable, once."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from . import checks, dtypes, lower, metrics
from .ir import Graph

_NO_LINES: Mapping[int, str] = {}


class Executable:
    """A compiled graph. Calling it starts the execution and returns at once; the results are jax arrays.

    Attributes:
        checks: what the program checks; if anything, there is one more result, the flag (`checks.py`).
        fallible: numbers of the calls that may fail when the program runs.
        physical: for each result, whether it is channels last (`layout.py`).
        smallest: number of the result with the fewest elements.
    """

    __slots__ = ("checks", "compiled", "fallible", "floats", "graph", "ints", "physical", "smallest")

    def __init__(
        self, graph: Graph, compiled: jax.stages.Compiled, physical: frozenset[int], checked: Sequence[checks.Check]
    ):
        self.graph = graph
        self.checks = tuple(checked)
        self.fallible = tuple(number for number, call in enumerate(graph.calls) if call.fallible)
        self.physical = tuple(number in physical for number in range(len(graph.outputs)))
        self.compiled = compiled
        sizes = [spec.numel for spec in graph.output_specs()]
        self.smallest = min(range(len(sizes)), key=sizes.__getitem__, default=0)
        self.floats = graph.floats
        self.ints = graph.ints

    def __call__(
        self,
        leaves: Sequence[jax.Array],
        floats: Sequence[float] = (),
        ints: Sequence[int] = (),
        lines: Mapping[int, str] = _NO_LINES,
    ) -> list[Any]:
        """Runs on the leaves' buffers, in the graph's order; donated ones are gone afterwards.

        Args:
            floats, ints: the scalars of the graph's calls in order.
            lines: call number → the user's line, for what is fallible.
        """
        results, execution = self.start(leaves, floats, ints, lines)
        if execution is not None:
            self.graph.device.started(execution)
        return results

    def start(
        self, leaves: Sequence[jax.Array], floats: Sequence[float], ints: Sequence[int], lines: Mapping[int, str]
    ) -> tuple[list[Any], checks.Execution | None]:
        """Like a call, but the caller looks after the execution."""
        results = self._run(leaves, floats, ints)
        flag = results.pop() if self.checks else None
        if not results and flag is None:
            return results, None
        marker = results[self.smallest] if flag is None else flag
        return results, checks.Execution(marker, flag, self.checks, self.graph, lines)

    def _run(self, leaves: Sequence[jax.Array], floats: Sequence[float], ints: Sequence[int]) -> list[Any]:
        if not self.floats and not self.ints:
            return self.compiled(*leaves)
        arguments: list[Any] = list(leaves)
        if self.floats:
            arguments.append(np.array(floats, dtype=np.float64))
        if self.ints:
            arguments.append(np.array(ints, dtype=np.int64))
        with dtypes.x64():  # else jax narrows the numpy vectors
            return self.compiled(*arguments)


_executables: dict[tuple[Graph, Any], Executable] = {}
_lock = threading.Lock()


def executable(graph: Graph, keep_layout: frozenset[int] | None = frozenset()) -> Executable:
    """The executable of a graph, compiled if it is not known yet.

    Args:
        keep_layout: numbers of the results that may be channels last (`Executable.physical` says which are), None for
            all; the others have torch's order.
    """
    key = graph, keep_layout
    found = _executables.get(key)
    if found is not None:
        metrics.count("CachedCompile")
        return found
    metrics.count("UncachedCompile")
    found = compile_graph(graph, keep_layout)
    with _lock:
        return _executables.setdefault(key, found)


def compile_graph(graph: Graph, keep_layout: frozenset[int] | None) -> Executable:
    """Traces the graph with jax and compiles it with XLA for the graph's device."""
    arguments: list[Any] = [spec.aval(number in graph.channels_last) for number, spec in enumerate(graph.leaves)]
    physical: set[int] = set()
    checked: list[checks.Check] = []
    sharding = graph.device.sharding
    if graph.floats:
        arguments.append(jax.ShapeDtypeStruct((graph.floats,), np.float64, sharding=sharding))
    if graph.ints:
        arguments.append(jax.ShapeDtypeStruct((graph.ints,), np.int64, sharding=sharding))
    with dtypes.x64():
        function = jax.jit(lower.to_function(graph, keep_layout, physical, checked), donate_argnums=graph.donated)
        compiled = _compile(function.lower(*arguments), graph.device.platform)
    return Executable(graph, compiled, frozenset(physical), checked)


# XLA's CPU fusion emitters (jaxlib 0.10.2) miscompile a fused in-place update that reads what it has just written:
# `y = x[::2]; y[1:] = y[:-1]; x[::2] = y` gives other numbers than its parts. Without them it is right, compiles in
# half the time, and runs as fast.
_OPTIONS: dict[str, dict[str, Any]] = {"cpu": {"xla_cpu_use_fusion_emitters": False}}


def _compile(lowered: jax.stages.Lowered, platform: str) -> jax.stages.Compiled:
    options = _OPTIONS.get(platform)
    try:
        return lowered.compile(compiler_options=options)
    except jax.errors.JaxRuntimeError as error:
        if options and any(name in str(error) for name in options):  # an XLA that has no such option any more
            return lowered.compile()
        raise


def clear() -> None:
    """Forgets every executable."""
    with _lock:
        _executables.clear()
