"""Control flow that depends on data and stays in the program: torch's `cond`, `while_loop`, `scan` and `map` are XLA's.

Each has functions of its operands, which arrive as graphs of their own. They are traced like any other and become one
call, whose lowering is jax's operator of the same name. What a function checks (`checks.py`) is seen by nobody outside
of it, so it gives its flag along with its results, and the call checks that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch

from lazy_runtime.cache.disk_key import UncacheableError
from lazy_runtime.cache.disk_key import program as digest_of
from lazy_runtime.functions.checked import CheckedGraph, first_failed, nothing_failed
from lazy_runtime.ir.graph import Call
from lazy_runtime.ir.spec import TensorSpec
from lazy_runtime.lowering.layout import logical
from lazy_runtime.recording import dispatch
from lazy_runtime.tensor.xla_tensor import XLATensor

from . import fx
from .outputs import Argument, Constant, PythonValue, Result, Source


class _Function(CheckedGraph):
    """A graph among the arguments of such an operator, traced for what it is called with.

    Attributes:
        operands: the tensors that it is called with, its own constants after them; one list for all functions of an
            operator.
    """

    def __init__(self, gm: torch.fx.GraphModule, arguments: Sequence[Any], operands: list[XLATensor], name: str):
        trace: Any = dispatch.current_trace()
        self.program = fx.trace(gm, arguments, trace.device)
        super().__init__(self.program.graph)
        if self.program.writes_arguments:
            raise NotImplementedError(f"a function of {name} writes to its arguments: have it return the new values")
        if self.program.graph.is_collective:
            raise NotImplementedError(f"a function of {name} communicates with other ranks: do that outside of it")
        # of the tensors among its arguments, where each stands
        tensors = [number for number, argument in enumerate(arguments) if isinstance(argument, XLATensor)]
        self._places = {number: place for place, number in enumerate(tensors)}
        self._constants = len(operands)
        operands.extend(leaf for leaf in self.program.leaves if isinstance(leaf, XLATensor))
        self._given: list[tuple[Source, int]] = []  # the number is the operand's, of a constant
        for output in self.program.outputs:
            if isinstance(output, PythonValue):
                raise NotImplementedError(f"a function of {name} returns {output.value!r}, where tensors are taken")
            source = output.source
            if isinstance(source, Constant):
                operands.append(source.tensor)
            self._given.append((source, len(operands) - 1))

    @property
    def specs(self) -> list[TensorSpec]:
        """What it returns, as it lies: one behind the other."""
        found: list[Any] = [output.spec for output in self.program.outputs if not isinstance(output, PythonValue)]
        return [TensorSpec.of(spec.device, spec.dtype, spec.shape) for spec in found]

    def __call__(self, tensors: Sequence[Any], operands: Sequence[Any], ints: Sequence[Any] = ()) -> tuple[Any, Any]:
        """Its results and its flag, within a trace of jax's.

        Args:
            tensors: those that it is called with.
            operands: all of the operator's, for its constants.
        """
        constants = iter(operands[self._constants :])
        leaves = [
            tensors[self._places[leaf]] if isinstance(leaf, int) else next(constants) for leaf in self.program.leaves
        ]
        found, flag = self.evaluated(leaves, ints)
        results = [
            found[source.number]
            if isinstance(source, Result)
            else tensors[self._places[source.number]]
            if isinstance(source, Argument)
            else operands[place]
            for source, place in self._given
        ]
        return logical(results), flag


def _tensors(arguments: Sequence[Any]) -> list[XLATensor]:
    return [argument for argument in arguments if isinstance(argument, XLATensor)]


def _call(
    name: str,
    operands: Sequence[XLATensor],
    functions: Sequence[_Function],
    outputs: Sequence[TensorSpec],
    evaluate: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]],
) -> list[XLATensor]:
    """Records the operator as one call.

    Args:
        evaluate: maps the operands' arrays and random seeds to its results.
    """
    call = Call(
        f"higher_order::{name}",
        outputs[0].device if outputs else operands[0].spec.device,
        lambda arrays, floats, ints: evaluate(logical(list(arrays)), ints),
        tuple(operand.spec for operand in operands),
        tuple(outputs),
        container=list,
        ints=sum(function.program.graph.ints for function in functions),
        fallible=any(call.fallible for function in functions for call in function.program.graph.calls),
    )
    call.digest = _digest(name, functions, call)
    return dispatch.record_in_trace(call, [operand.handle.value for operand in operands])


def _digest(name: str, functions: Sequence[_Function], call: Call) -> bytes | None:
    """What the program is found by on disk; None if it cannot be told from others."""
    try:
        parts = [
            (digest_of(each.program.graph, None), str(each.program.leaves), str(each._given)) for each in functions
        ]
    except UncacheableError:
        return None
    return repr((name, parts, call.inputs, call.outputs)).encode()


def _deterministic(functions: Sequence[_Function], name: str) -> None:
    if any(function.program.graph.ints for function in functions):
        raise NotImplementedError(
            f"a function of {name} draws random numbers, which would be the same in each turn: draw them before it"
        )


@fx.higher_order("cond")
def cond(pred: Any, true_graph: Any, false_graph: Any, arguments: Sequence[Any] = ()) -> list[XLATensor]:
    """One of two functions; the other one is not computed."""
    if not isinstance(pred, XLATensor):  # it depends on sizes
        return invoke_subgraph(true_graph if pred else false_graph, "cond", *arguments)
    operands = [*_tensors(arguments), pred]
    known = len(operands) - 1
    branches = [_Function(gm, arguments, operands, "cond") for gm in (true_graph, false_graph)]
    ints = branches[0].program.graph.ints

    def evaluate(arrays: Sequence[Any], seeds: Sequence[Any]) -> Sequence[Any]:
        given, chosen = arrays[:known], arrays[known].reshape(()).astype(bool)
        one, other = branches
        results, flag = jax.lax.cond(
            chosen, lambda: one(given, arrays, seeds[:ints]), lambda: other(given, arrays, seeds[ints:])
        )
        one.require(jnp.where(chosen, flag, nothing_failed()))
        other.require(jnp.where(chosen, nothing_failed(), flag))
        return results

    return _call("cond", operands, branches, branches[0].specs, evaluate)


@fx.higher_order("invoke_subgraph")
def invoke_subgraph(graph: Any, identifier: str, *arguments: Any) -> list[XLATensor]:
    """A function that is called (`torch.compiler.nested_compile_region`)."""
    operands = _tensors(arguments)
    known = len(operands)
    function = _Function(graph, arguments, operands, "nested_compile_region")

    def evaluate(arrays: Sequence[Any], seeds: Sequence[Any]) -> Sequence[Any]:
        results, flag = function(arrays[:known], arrays, seeds)
        function.require(flag)
        return results

    return _call("invoke_subgraph", operands, [function], function.specs, evaluate)


@fx.higher_order("while_loop")
def while_loop(
    cond_graph: Any, body_graph: Any, carried: Sequence[Any], additional: Sequence[Any] = ()
) -> list[XLATensor]:
    """The values that the loop carries, after its last turn."""
    _all_tensors(carried, "while_loop carries")
    arguments = [*carried, *additional]
    operands = _tensors(arguments)
    known = len(operands)
    goes_on, body = functions = [_Function(gm, arguments, operands, "while_loop") for gm in (cond_graph, body_graph)]
    _deterministic(functions, "while_loop")
    if any(call.fallible for call in goes_on.program.graph.calls):
        raise NotImplementedError("an operator that may fail is in the condition of a while_loop: move it to the body")

    def evaluate(arrays: Sequence[Any], seeds: Sequence[Any]) -> Sequence[Any]:
        rest = list(arrays[len(carried) : known])

        def condition(state: Any) -> Any:
            (is_true,), _ = goes_on([*state[0], *rest], arrays)
            return is_true.reshape(()).astype(bool)

        def turn(state: Any) -> Any:
            values, flag = body([*state[0], *rest], arrays)
            return values, first_failed(state[1], flag)

        start = list(arrays[: len(carried)]), nothing_failed()
        values, flag = jax.lax.while_loop(condition, turn, start)
        body.require(flag)
        return values

    return _call("while_loop", operands, functions, body.specs, evaluate)


@fx.higher_order("scan")
def scan(combine: Any, init: Sequence[Any], xs: Sequence[Any], additional: Sequence[Any] = ()) -> list[XLATensor]:
    """What is carried at the end, and what each turn gives, one behind the other."""
    _all_tensors([*init, *xs], "scan takes")
    return _scan("scan", combine, init, xs, additional)


@fx.higher_order("map_impl")
def map_impl(f: Any, xs: Sequence[Any], additional: Sequence[Any] = ()) -> list[XLATensor]:
    """What the function gives for each element of the first dimension."""
    _all_tensors(xs, "map takes")
    return _scan("map", f, [], xs, additional)


def _scan(name: str, graph: Any, init: Sequence[Any], xs: Sequence[Any], additional: Sequence[Any]) -> list[XLATensor]:
    arguments = [*init, *(_element(x) for x in xs), *additional]
    given = [*init, *xs, *additional]
    operands = _tensors(given)
    known, carries = len(operands), len(init)
    function = _Function(graph, arguments, operands, name)
    _deterministic([function], name)
    length = xs[0].shape[0]
    stacked = [TensorSpec.of(spec.device, spec.dtype, (length, *spec.shape)) for spec in function.specs[carries:]]

    def evaluate(arrays: Sequence[Any], seeds: Sequence[Any]) -> Sequence[Any]:
        rest = list(arrays[carries + len(xs) : known])

        def turn(state: Any, elements: Any) -> Any:
            values, flag = function([*state[0], *elements, *rest], arrays)
            return (values[:carries], first_failed(state[1], flag)), values[carries:]

        start = list(arrays[:carries]), nothing_failed()
        (carried, flag), made = jax.lax.scan(turn, start, list(arrays[carries : carries + len(xs)]))
        function.require(flag)
        return [*carried, *made]

    return _call(name, operands, [function], [*function.specs[:carries], *stacked], evaluate)


def _element(x: XLATensor) -> XLATensor:
    """Stands for one element of the first dimension, while the function is traced."""
    return dispatch.dispatch(XLATensor, torch.ops.aten.select_copy.int, (), (x, 0, 0))


def _all_tensors(values: Sequence[Any], what: str) -> None:
    for value in values:
        if not isinstance(value, XLATensor):
            raise NotImplementedError(f"{what} a number ({value!r}): make it a tensor")
