"""`ir.Graph` → a jax function: one loop over the calls."""

from __future__ import annotations

import contextlib
import re
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..ir import dtypes, lowering_context
from ..ir.graph import Call, Graph, Nested
from ..ir.spec import TensorSpec
from ..lowering import checks, extrema, layout, write_chains
from .donation_ordering import DonationOrdering
from .plan import CompilePlan


class LoweringError(RuntimeError):
    """An operator could not be lowered for these arguments: its lowering raised, or gave something else than torch's
    meta kernel said.

    Attributes:
        call: the application of the operator.
    """

    def __init__(self, call: Call, problem: str):
        super().__init__(f"{call} cannot be lowered to XLA: {problem}")
        self.call = call


class _Thread(threading.local):
    """What is true of the calling thread.

    Attributes:
        name: of the user's for the programs that this thread makes now (`lazy_runtime.compile`), or empty.
    """

    name = ""


thread = _Thread()
_NOTHING = contextlib.nullcontext()


def graph_name() -> str:
    """What reports call the program that the calling thread makes now."""
    return thread.name or "SyncTensorsGraph"  # PyTorch/XLA's


def to_function(plan: CompilePlan, physical: set[int], checked: list[checks.Check]) -> Callable[..., list[Any]]:
    """The jax function (leaves..., floats, ints) → outputs of the graph, and `checks.Collector.flag` if it checks
    anything. With collectives it has one more argument, an int32 0 (`Collector.zero`).

    `floats` (float64 vector) and `ints` (int64 vector) hold the scalars of all calls in order; each is left out of the
    arguments if there are none.

    Args:
        plan: of the graph. An output that takes a donated buffer is never channels last.
        physical: receives, when jax traces the function, the numbers of the outputs that are.
        checked: receives what the program checks.
    """
    graph, keep_layout = plan.graph, plan.keep_layout

    def function(*arguments: Any) -> list[Any]:
        collector = checks.Collector()
        with lowering_context.changed(
            narrows=graph.device.narrows and bool(dtypes.narrowed()),
            is_sharded=graph.device.grid is not None,
            has_kernel_thread=plan.is_of_kernels,
            has_other_kernels=plan.has_other_kernels,
            collector=collector,
        ):
            return run(arguments, collector)

    def run(arguments: Sequence[Any], collector: checks.Collector) -> list[Any]:
        taken = {(graph.leaves[number].shape, dtypes.to_numpy(graph.leaves[number].dtype)) for number in graph.donated}
        leaves: list[Any] = list(arguments[: len(graph.leaves)])
        for number in graph.channels_last:
            leaves[number] = layout.ChannelsLast(leaves[number])
        numbers = iter(arguments[len(graph.leaves) :])
        floats = next(numbers) if graph.floats else ()
        ints = next(numbers) if graph.ints else ()
        collector.zero = next(numbers) if graph.is_collective else None
        collector.ordering = DonationOrdering(plan)
        results = evaluate(graph, leaves, floats, ints, plan.scopes)
        for number, result in enumerate(results):
            allowed = keep_layout is None or number in keep_layout
            if allowed and isinstance(result, layout.ChannelsLast) and (result.shape, result.dtype) not in taken:
                physical.add(number)
                results[number] = result.physical
        results = layout.logical(results)
        if collector.checks:
            checked.extend(collector.checks)
            results.append(collector.flag())
        return results

    function.__name__ = thread.name or function.__name__  # XLA's module and its dumps have it
    return function


def evaluate(
    graph: Graph,
    leaves: Any,
    floats: Any,
    ints: Any,
    scopes: Sequence[str] = (),
    number_of: Callable[[int], int] | None = None,
) -> list[Any]:
    """Interprets the graph on (traced) arrays or `ChannelsLast` values, in the lowering context around it.

    Args:
        scopes: for each call, what its instructions are named after; empty for nothing.
        number_of: makes the numbers of the calls in checks and errors (`checks.Collector.nested`).
    """
    context = lowering_context.current()
    collector = checks.current()
    slots: list[Any] = []
    ordering: DonationOrdering | None = collector.ordering
    searched = extrema.searched(graph)
    ends_chain = write_chains.ends(graph)
    next_operand = next_float = next_int = 0
    for number, call in enumerate(graph.calls):
        collector.call = number if number_of is None else number_of(number)
        operands = graph.operands[next_operand : next_operand + len(call.inputs)]
        next_operand += len(call.inputs)
        for slot in searched.get(number, ()):
            slots[slot] = extrema.fixed(slots[slot])
        arrays = [slots[slot] if slot >= 0 else leaves[-1 - slot] for slot in operands]
        if ordering is not None:
            arrays = ordering.operands(number, arrays)
        places = range(next_float, next_float + call.floats)
        call_floats = [floats[graph.shared[place] if graph.shared else place] for place in places]
        call_ints = [ints[next_int + i] for i in range(call.ints)]
        next_float += call.floats
        next_int += call.ints
        try:
            inside = _NOTHING if ordering is None or call.nested is None else ordering.inside(number)
            with inside, jax.named_scope(scopes[number]) if scopes else _NOTHING:
                if _is_of_nothing(call):
                    results = _nothing(call)
                elif context.narrows:
                    results = _narrow(call, arrays, call_floats, call_ints, collector)
                else:
                    results = call.evaluate(arrays, call_floats, call_ints)
        except Exception as error:
            if not _gives_nothing(call):
                raise LoweringError(call, f"{type(error).__name__}: {error}") from error
            results = _nothing(call)
        if number in ends_chain:
            results = [extrema.fixed(result) for result in results]
        _check(call, results)
        if ordering is not None:
            ordering.made(number, results)
        slots.extend(results)
    return [slots[slot] if slot >= 0 else leaves[-1 - slot] for slot in graph.outputs]


def _gives_nothing(call: Call) -> bool:
    """Whether no result has an element: numpy's functions refuse some dtypes and sizes even then."""
    return call.nested is None and bool(call.outputs) and all(spec is None or 0 in spec.shape for spec in call.outputs)


def _is_of_nothing(call: Call) -> bool:
    """Whether no operand has one either: XLA's factorizations refuse some dtypes when the program is compiled."""
    return _gives_nothing(call) and not call.collective and all(0 in spec.shape for spec in call.inputs)


def _nothing(call: Call) -> list[Any]:
    return [spec and jnp.zeros(spec.shape, dtypes.to_numpy(spec.dtype)) for spec in call.outputs]


def nested_call(graph: Graph, lines: Mapping[int, str], scopes: Sequence[str] = ()) -> Call:
    """A graph as one call of other graphs: its leaves are the inputs, its outputs the results. Equal graphs are one
    call.

    Args:
        lines: call number → the user's line, for what is fallible in the graph.
        scopes: for each of its calls, what its instructions are named after; those of equal graphs are the first one's.
    """
    key = graph, tuple(sorted(lines.items()))
    with _nesting:
        found = _nested.get(key)
        if found is None:
            found = _nested[key] = _new_nested_call(graph, lines, scopes)
    return found


#: They live as long as programs and compiled functions have them.
_nested: weakref.WeakValueDictionary[tuple[Graph, tuple[tuple[int, str], ...]], Call] = weakref.WeakValueDictionary()
_nesting = threading.RLock()


def _new_nested_call(graph: Graph, lines: Mapping[int, str], scopes: Sequence[str]) -> Call:

    def evaluate_graph(arrays: Sequence[Any], floats: Sequence[Any], ints: Sequence[Any]) -> list[Any]:
        with checks.current().nested() as number_of:
            return evaluate(graph, arrays, floats, ints, scopes, number_of)

    call = Call(
        "openxla::graph",
        graph.device,
        evaluate_graph,
        graph.leaves,
        tuple(graph.output_specs()),
        floats=graph.floats,
        ints=graph.ints,
        fallible=any(call.fallible for call in graph.calls),
        collective=graph.is_collective,
    )
    call.nested = Nested(graph, lines, {})
    return call


def _narrow(call: Call, arrays: Sequence[Any], floats: Any, ints: Any, collector: checks.Collector) -> list[Any]:
    """Lowers a call on arrays that have fewer bits than torch says, as their dtypes are; where its lowering cannot do
    that, on arrays of torch's dtypes.
    """
    known = len(collector.checks)
    try:
        if _WIDE.match(call.name):
            raise TypeError(call.name)
        results = call.evaluate(arrays, floats, ints)
    except Exception:
        collector.forget(known)
        with lowering_context.changed(narrows=False):
            wide = [_cast(array, spec) for array, spec in zip(arrays, call.inputs, strict=True)]
            results = call.evaluate(wide, floats, ints)
    return [result if spec is None else _cast(result, spec) for result, spec in zip(results, call.outputs, strict=True)]


# LAPACK and XLA's FFT have no 16-bit types, which shows only after the lowering
_WIDE = re.compile(r"aten::(_?linalg|_?cholesky|_?fft|_?lu|lu|geqrf|orgqr|ormqr|triangular_solve|matrix_exp)")


def _cast(x: Any, spec: TensorSpec) -> Any:
    dtype = dtypes.to_numpy(spec.dtype)
    if isinstance(x, layout.ChannelsLast):
        return layout.ChannelsLast(x.physical.astype(dtype))
    return layout.logical(x).astype(dtype)


def _check(call: Call, results: Any) -> None:
    if len(results) != len(call.outputs):
        raise LoweringError(call, f"the lowering gave {len(results)} outputs instead of {len(call.outputs)}")
    for spec, result in zip(call.outputs, results, strict=True):
        if spec is None:
            continue
        if tuple(result.shape) != spec.shape or result.dtype != dtypes.to_numpy(spec.dtype):
            raise LoweringError(call, f"the lowering gave {result.dtype}{list(result.shape)} instead of {spec}")
