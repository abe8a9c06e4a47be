"""`ir.Graph` → executable, once."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ..common import forking, interrupts, metrics
from ..ir import dtypes, scalar_deduplication
from ..ir.graph import Graph
from ..lowering import aten_bridge, checks
from ..ops import kernels
from ..processes import collective_log, multihost_arrays, process_job, watchdog
from . import capacity, fusion_emitters, lower, programs
from .plan import CompilePlan

#: Called with each graph that is about to be executed.
before_execution: list[Callable[[Graph], None]] = []
_NO_LINES: Mapping[int, str] = {}


class Executable:
    """A compiled graph. Calling it starts the execution and returns at once; the results are jax arrays.

    Attributes:
        checks: what the program checks; if anything, there is one more result, the flag (`checks.py`).
        fallible: numbers of the calls that may fail when the program runs.
        located: numbers of the calls whose lines are wanted when it is run.
        physical: for each result, whether it is channels last (`layout.py`).
        smallest: number of the result with the fewest elements.
        compile_ns: what tracing, lowering and compiling it took, in nanoseconds; 0 if it was not compiled here.
        is_collective: the ranks of a job run it together, each with its own buffers.
        together: what it has of collectives, for each group of ranks, where the ranks are processes.
        spanning: what other processes are told of it, where its arrays have parts in theirs (SPMD); else None.
        is_new: nobody has run it yet; `debug.compiling.ready` is told then, and takes the mark away.
        used: when it was last run: greater than that of all that were run before (`programs.now`).
        drops: how the compiled functions that have it let go of it.
        choices: which kernels its operators took: (number of the call as in checks, choice). Empty if it was not
            compiled here.
    """

    __slots__ = (
        "__weakref__",
        "_is_of_kernels",
        "_places",
        "checks",
        "choices",
        "compile_ns",
        "compiled",
        "drops",
        "fallible",
        "floats",
        "graph",
        "ints",
        "is_collective",
        "is_new",
        "located",
        "physical",
        "smallest",
        "spanning",
        "together",
        "used",
    )

    def __init__(
        self,
        plan: CompilePlan,
        compiled: jax.stages.Compiled,
        physical: frozenset[int],
        checked: Sequence[checks.Check],
    ):
        self.graph = graph = plan.graph
        self.checks = checked
        self.fallible = tuple(number for number, call in enumerate(graph.calls) if call.fallible)
        self.located = tuple(number for number, call in enumerate(graph.calls) if call.located)
        self.physical = tuple(number in physical for number in range(len(graph.outputs)))
        self.compiled = compiled
        sizes = [spec.numel for spec in graph.output_specs()]
        self.smallest = min(range(len(sizes)), key=sizes.__getitem__, default=0)
        self.floats = graph.floats
        self.ints = graph.ints
        self.is_collective = graph.is_collective
        self.together: tuple[collective_log.Program, ...] = ()
        if self.is_collective and graph.device.team is None:
            self.together = collective_log.of(graph, process_job.ranks(graph.device), process_job.place().rank)
        self.spanning = multihost_arrays.of_graph(graph) if graph.device.spans_processes else None
        order = plan.order
        #: for each output of the graph, which of the program's results it is
        self._places = None if order is None else sorted(range(len(order)), key=order.__getitem__)
        self._is_of_kernels = plan.is_of_kernels
        self.compile_ns = 0
        self.is_new = True
        self.used = programs.now()
        self.drops: list[Callable[[], None]] = []
        self.choices: Sequence[tuple[int, kernels.Choice]] = ()

    def __call__(
        self,
        leaves: Sequence[jax.Array],
        floats: Sequence[float] = (),
        ints: Sequence[int] = (),
        lines: Mapping[int, str] = _NO_LINES,
        counted: bool = False,
        timed: bool = True,
    ) -> list[Any]:
        """Starts an execution on the leaves' buffers, in the graph's order; donated ones are gone afterwards. Whatever
        executes a program does it by this or by `start`.

        Args:
            floats, ints: the scalars of the graph's calls in order.
            lines: call number → the user's line, for what is `located` at least.
            counted: the caller has counted this execution.
            timed: it is a sample of `ExecuteTime`.

        Returns:
            The results' buffers, which may still be computed.

        Raises:
            checks.KernelError: a kernel has failed before control returned.
        """
        results, execution = self.start(leaves, floats, ints, lines, counted, timed)
        if execution is not None:
            self.graph.device.started(execution)
        return results

    def start(
        self,
        leaves: Sequence[jax.Array],
        floats: Sequence[float],
        ints: Sequence[int],
        lines: Mapping[int, str],
        counted: bool = False,
        timed: bool = True,
    ) -> tuple[list[Any], checks.Execution | None]:
        """Like a call, but the caller looks after the execution."""
        self.used = programs.now()
        for tell in before_execution:
            tell(self.graph)
        if self._is_of_kernels:
            aten_bridge.release_workers()
        began = time.perf_counter_ns() if timed else 0
        try:
            results = self._run(leaves, floats, ints, lines)
        except jax.errors.JaxRuntimeError as error:
            found = checks.kernel_error(error, self.graph, lines)
            if found is None:
                raise
            raise found from None
        if not counted:
            metrics.count("ExecuteComputation")
        flag = results.pop() if self.checks else None
        if self._places is not None:
            results = [results[place] for place in self._places]
        if not results and flag is None:
            return results, None
        marker = results[self.smallest] if flag is None else flag
        return results, checks.Execution(
            marker, flag, self.checks, self.graph, lines, flag is not None or bool(self.located), began
        )

    def _run(
        self, leaves: Sequence[jax.Array], floats: Sequence[float], ints: Sequence[int], lines: Mapping[int, str]
    ) -> list[Any]:
        if self.is_collective:
            return self._run_together(leaves, floats, ints, lines)
        if not self.floats and not self.ints and self.spanning is None:
            return self.compiled(*leaves)
        arguments: list[Any] = list(leaves)
        if self.floats:
            arguments.append(np.array(floats, dtype=np.float64))
        if self.ints:
            arguments.append(np.array(ints, dtype=np.int64))
        with dtypes.x64():  # else jax narrows the numpy vectors
            if self.spanning is not None:
                return multihost_arrays.run(self.compiled, arguments, self.spanning, self.smallest)
            return self.compiled(*arguments)

    def _run_together(
        self, leaves: Sequence[jax.Array], floats: Sequence[float], ints: Sequence[int], lines: Mapping[int, str]
    ) -> list[Any]:
        arguments = list(leaves)
        numbers = [np.array(floats, np.float64)] if self.floats else []
        numbers += [np.array(ints, np.int64)] if self.ints else []
        device = self.graph.device
        with dtypes.x64():
            arguments += jax.device_put([*numbers, np.int32(0)], device.jax_device)
            if device.team is not None:
                return device.team.run(device, self.compiled, arguments)
            entries = [watchdog.begin(program, lines) for program in self.together]
            results: Sequence[Any] = ()
            try:
                results = self.compiled(*map(process_job.together, arguments))
            except Exception as error:
                if hasattr(error, "add_note"):  # from Python 3.11 on
                    error.add_note(
                        f"in {', '.join(map(str, entries))}: another rank has failed, or come to something else"
                    )
                raise
            finally:
                for entry in entries:
                    entry.started(results[self.smallest] if results else None)
        return [process_job.own(result) for result in results]


_executables = programs.Programs()


def known(graph: Graph, keep_layout: frozenset[int] | None) -> Executable | None:
    """The executable of a graph, if this process has it."""
    return _executables.get((graph, keep_layout, None))


def executable(
    graph: Graph,
    keep_layout: frozenset[int] | None = frozenset(),
    drop: Callable[[], None] | None = None,
    plan: CompilePlan | None = None,
) -> Executable:
    """The executable of a graph, compiled if it is not known yet.

    Args:
        keep_layout: numbers of the results that may be channels last (`Executable.physical` says which are), None for
            all; the others have torch's order.
        drop: how the compiled function that asks for it lets go of it (`programs.py`).
        plan: of the graph and the layout, if there is one already.
    """
    team = graph.device.team
    if team is not None and not graph.is_collective:
        team = None
    key = graph, keep_layout, team
    found = _executables.get(key)
    if found is not None:
        metrics.count("CachedCompile")
        if drop is not None:
            found.drops.append(drop)
        return found
    if plan is None:
        plan = CompilePlan(graph, keep_layout)
    deduplicated = scalar_deduplication.deduplicated(graph)
    if deduplicated is not graph:
        return executable(deduplicated, keep_layout, drop, plan.of(deduplicated))
    if team is not None:
        shared = team.share(graph, lambda: _compile_counted(plan))
        physical = frozenset(number for number, is_last in enumerate(shared.physical) if is_last)
        return _executables.keep(key, Executable(plan, shared.compiled, physical, shared.checks), drop)
    with interrupts.deferred():  # what was compiled meanwhile is kept
        return _executables.keep(key, _load(plan) or _compile_counted(plan), drop)


def _load(plan: CompilePlan) -> Executable | None:
    """The executable of a graph from the disk; None if it is not there."""
    loaded = plan.place.load() if plan.place is not None else None
    if loaded is None:
        return None
    metrics.count("CachedCompile")  # as PyTorch/XLA counts it
    return Executable(plan, loaded.compiled, loaded.physical, _Retraced(loaded.checks, plan.of(plan.graph)))


def _compile_counted(plan: CompilePlan) -> Executable:
    metrics.count("UncachedCompile")
    return compile_graph(plan)


def compile_graph(plan: CompilePlan, keep_unused: bool = False) -> Executable:
    """Traces the graph with jax, compiles it with XLA for the graph's device, and keeps it on disk.

    Args:
        keep_unused: the machine code has all leaves as its parameters; jax drops those that nothing depends on.
    """
    graph = plan.graph
    capacity.refuse_results(graph)
    physical: set[int] = set()
    checked: list[checks.Check] = []
    checks.compile_began = began = time.perf_counter_ns()
    # by its arguments jax knows where a program is to run; there may be none
    with dtypes.x64(), jax.default_device(graph.device.jax_device):
        function = _of_ranks(plan, lower.to_function(plan, physical, checked))
        with kernels.collected() as choices:
            jitted = jax.jit(function, donate_argnums=graph.donated, keep_unused=keep_unused)
            lowered = jitted.lower(*_arguments(graph))
        interrupts.raise_caught()
        compiled = _compile(lowered, fusion_emitters.options(graph, lowered), dict(graph.options))
    capacity.refuse_program(graph, compiled)
    took = time.perf_counter_ns() - began
    metrics.count("CreateCompileHandles")
    if not plan.is_eager:
        metrics.record("CompileTime", took)
    metrics.record("InputOutputAliasCount", len(graph.donated), metrics.Unit.VALUE)
    if plan.place is not None:
        plan.place.store(lowered, compiled, physical, len(checked))
    found = Executable(plan, compiled, frozenset(physical), tuple(checked))
    found.compile_ns = took
    found.choices = choices
    return found


def lowered(plan: CompilePlan) -> jax.stages.Lowered:
    """The graph as StableHLO, to be looked at."""
    with dtypes.x64():
        return jax.jit(_of_ranks(plan, lower.to_function(plan, set(), []))).lower(*_arguments(plan.graph))


def _of_ranks(plan: CompilePlan, function: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """The function of a graph; of one with collectives, what all ranks of the job compute with it, each on arrays of
    its own (`process_job.sharding`); of one over a grid, with the shardings that its results are to have.
    """
    graph = plan.graph
    if graph.results is not None:
        return lambda *arguments: _lying(graph, function(*arguments))
    if not graph.is_collective:
        return _ordered(function, plan.order)
    mesh, spec = process_job.sharding(graph.device).mesh, jax.sharding.PartitionSpec()
    return jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)


def _ordered(function: Callable[..., list[Any]], order: tuple[int, ...] | None) -> Callable[..., list[Any]]:
    if order is None:
        return function

    @functools.wraps(function)
    def ordered(*arguments: Any) -> list[Any]:
        results = function(*arguments)
        return [*[results[number] for number in order], *results[len(order) :]]

    return ordered


def _lying(graph: Graph, results: list[Any]) -> list[Any]:
    # not as `out_shardings`: how many results there are shows when the graph has been traced, and checks have one
    assert graph.results is not None
    wanted = [*graph.results, *[graph.device.sharding] * (len(results) - len(graph.results))]
    return [
        result if lies is None else jax.lax.with_sharding_constraint(result, lies)
        for result, lies in zip(results, wanted, strict=True)
    ]


def _arguments(graph: Graph) -> list[Any]:
    """What the graph's jax function takes."""
    arguments: list[Any] = [spec.aval(number in graph.channels_last) for number, spec in enumerate(graph.leaves)]
    if graph.placements is not None:
        arguments = [
            jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=lies)
            for each, lies in zip(arguments, graph.placements, strict=True)
        ]
    sharding: Any = graph.device.sharding
    if graph.is_collective:
        sharding = process_job.sharding(graph.device)
        arguments = [jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=sharding) for each in arguments]
    if graph.floats:
        arguments.append(jax.ShapeDtypeStruct((graph.floats,), np.float64, sharding=sharding))
    if graph.ints:
        arguments.append(jax.ShapeDtypeStruct((graph.ints,), np.int64, sharding=sharding))
    if graph.is_collective:
        arguments.append(jax.ShapeDtypeStruct((), np.int32, sharding=sharding))
    return arguments


class _Retraced(Sequence[checks.Check]):
    """The checks of a program that was not traced in this process. They make exceptions, which are code, so the graph
    is traced for them when one has failed.
    """

    def __init__(self, length: int, plan: CompilePlan):
        self._length = length
        self._plan = plan
        self._checks: list[checks.Check] = []

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: Any) -> Any:
        if not self._checks:
            found: list[checks.Check] = []
            function = _of_ranks(self._plan, lower.to_function(self._plan, set(), found))
            with dtypes.x64():
                jax.eval_shape(function, *_arguments(self._plan.graph))
            self._checks = found
        return self._checks[number]


def _compile(lowered: jax.stages.Lowered, options: dict[str, Any], users: dict[str, Any]) -> jax.stages.Compiled:
    """Compiles a lowered program with the options of both.

    Args:
        options: of ours, which this XLA has.
        users: options that the user asked for (`lazy_runtime.compile(custom_compile_options=...)`).

    Raises:
        ValueError: XLA knows none of that name, or not with that value.
    """
    try:
        return lowered.compile(compiler_options={**options, **users} or None)
    except jax.errors.JaxRuntimeError as error:
        refused = [name for name in users if name in str(error)]
        if refused:
            raise ValueError(f"custom_compile_options: XLA refuses {refused[0]!r}: {error}") from error
        raise


def count() -> int:
    """How many executables are known."""
    return len(_executables)


def clear() -> None:
    """Forgets every executable; the next collection frees their memory, since calls and lowerings refer to each other.

    Compiled functions keep theirs.
    """
    _executables.clear()


#: To be called for each call that is interned.
called = _executables.called

#: To be called for each compiled function whose graph is a call, and where that function is gone.
hold = _executables.hold
let_go = _executables.let_go


forking.refuse_in_child(Executable, "start")
forking.refuse_in_child(sys.modules[__name__], "executable", "compile_graph")
