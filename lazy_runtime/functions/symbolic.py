"""A function for sizes that are not known, from its traces for sizes that are.

A trace is made of concrete sizes, as everything here is. Two traces of one function for different sizes are the same
operators, and their numbers differ where they depend on the sizes. So a function is traced for a few sizes, and each
number that differs becomes the polynomial in the sizes that all traces but one determine and that one confirms. What a
polynomial does not describe is refused: a branch on a size, a quotient that is rounded.
"""

from __future__ import annotations

import copy
import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np

from ..ir import lowering_context
from ..ir.graph import Call, Graph, Placeholder, filled
from ..ir.spec import TensorSpec
from ..lowering import precision
from .traced import TracedFunction

#: By the names of the symbols.
Sizes: TypeAlias = "Mapping[str, Any]"

#: Small, so that they are within what a model allows (a table of positions); of 1 and 2 some code makes exceptions.
_PRIMES = tuple(number for number in range(5, 152) if all(number % each for each in range(2, number)))

#: Of a polynomial: as many elements as two sizes have together (`b * s`), or a matrix of positions (`s * s`).
_DEGREE = 2


class SymbolicSizes:
    """What numbers of several traces are as polynomials in the sizes.

    Args:
        symbols: the sizes as jax has them, by name.

    Attributes:
        assignments: the sizes to trace for.
    """

    def __init__(self, symbols: Sizes):
        names = list(symbols)
        powers = itertools.product(range(_DEGREE + 1), repeat=len(names))
        self._monomials = [each for each in powers if sum(each) <= _DEGREE]
        self._symbols = list(symbols.values())
        count = len(self._monomials) + 1
        if count * len(names) > len(_PRIMES):
            raise NotImplementedError(f"{len(names)} symbolic sizes ({', '.join(names)}): there may be three")
        chosen = iter(random.Random(0).sample(_PRIMES, count * len(names)))  # in order, they lie on few lines
        values = [[next(chosen) for _ in names] for _ in range(count)]
        self.assignments: list[dict[str, int]] = [dict(zip(names, each, strict=True)) for each in values]
        rows = [[self._value(powers, each) for powers in self._monomials] for each in values]
        self._check_row = rows.pop()
        self._inverse = _inverse(rows)

    def polynomial(self, values: Sequence[int]) -> Any:
        """The polynomial that has these values in the traces; None if there is none with whole coefficients."""
        coefficients = [sum(a * b for a, b in zip(row, values, strict=False)) for row in self._inverse]
        confirmed = sum(a * b for a, b in zip(self._check_row, coefficients, strict=True)) == values[-1]
        if not confirmed or any(each.denominator != 1 for each in coefficients):
            return None
        terms = zip(map(int, coefficients), self._monomials, strict=True)
        return sum(factor * self._value(powers, self._symbols) for factor, powers in terms if factor)

    @staticmethod
    def _value(powers: Sequence[int], sizes: Sequence[Any]) -> Any:
        return math.prod(size for size, power in zip(sizes, powers, strict=True) for _ in range(power))


def _inverse(rows: list[list[int]]) -> list[list[Fraction]]:
    """The inverse of a matrix, by Gauss and Jordan."""
    count = len(rows)
    left = [[Fraction(value) for value in row] + [Fraction(i == j) for j in range(count)] for i, row in enumerate(rows)]
    for place in range(count):
        pivot = next(number for number in range(place, count) if left[number][place])
        left[place], left[pivot] = left[pivot], left[place]
        left[place] = [value / left[place][place] for value in left[place]]
        for number in range(count):
            if number != place and left[number][place]:
                factor = left[number][place]
                left[number] = [a - factor * b for a, b in zip(left[number], left[place], strict=True)]
    return [row[count:] for row in left]


def generalized(
    name: str, sizes: SymbolicSizes, trace: Callable[[Mapping[str, int]], TracedFunction]
) -> TracedFunction:
    """A function for symbolic sizes.

    Args:
        name: what errors call it.
        trace: traces it for some sizes.

    Returns:
        a traced function whose graph has polynomials of jax's sizes where it had numbers; within a trace of jax's it is
        called as any other.

    Raises:
        NotImplementedError: it depends on a size in a way that is no polynomial.
    """
    traces = [trace(each) for each in sizes.assignments]
    generalization = _Generalization(name, sizes)
    generalization.refuse_captured(traces)
    found = copy.copy(traces[0])
    found.graph = generalization.graph([each.graph for each in traces])
    return found


class _Generalization:
    def __init__(self, name: str, sizes: SymbolicSizes):
        self._name = name
        self._sizes = sizes

    def refuse_captured(self, traces: Sequence[TracedFunction]) -> None:
        """Refuses constants whose elements depend on a size."""
        shared = [each.captured for each in traces]
        if len({len(each) for each in shared}) > 1 or any(each.operands != traces[0].operands for each in traces):
            raise self._refused("it does other things for other sizes")
        for tensors in zip(*shared, strict=True):
            handles = {id(each.handle) for each in tensors}
            if len(handles) > 1 and not _are_equal(tensors):
                raise self._refused("a tensor that it makes of a size (`torch.tensor(x.shape[0])`) is a constant")

    def graph(self, graphs: Sequence[Graph]) -> Graph:
        """The graph of all sizes."""
        first = graphs[0]
        for each in graphs:
            if (each.operands, each.outputs, len(each.calls)) != (first.operands, first.outputs, len(first.calls)):
                raise self._refused("it does other things for other sizes")
        calls = [self._call(list(each)) for each in zip(*(graph.calls for graph in graphs), strict=True)]
        leaves = [
            self._merged(list(each), "an operand") for each in zip(*(each.leaves for each in graphs), strict=True)
        ]
        return first._replace(calls=tuple(calls), leaves=tuple(leaves))

    def _call(self, calls: list[Call]) -> Call:
        first = calls[0]
        if all(each is first for each in calls):  # no size is in it
            return first
        if len({each.name for each in calls}) > 1:
            raise self._refused("it does other things for other sizes")
        if first.meaning is None or first.arguments is None:
            raise self._refused(
                "it has a loop or a branch in it, whose functions would have to be traced for all sizes"
            )
        operator = first.meaning[0]
        inputs = [self._merged(list(each), first.name) for each in zip(*(each.inputs for each in calls), strict=True)]
        outputs = [self._merged(list(each), first.name) for each in zip(*(each.outputs for each in calls), strict=True)]
        tensors = [Placeholder("tensor", number) for number in range(len(inputs))]
        seeds = [Placeholder("int", number) for number in range(first.ints)]
        args, kwargs = self._merged([_arguments(each, tensors, seeds) for each in calls], first.name)
        level = precision.level() if operator.products else "highest"

        def evaluate(arrays: Sequence[Any], floats: Sequence[Any], ints: Sequence[Any]) -> Sequence[Any]:
            given = arrays, floats, ints
            options = {key: filled(each, *given) for key, each in kwargs.items()}
            if operator.random:
                options["seed"] = ints[-1]
            with lowering_context.changed(precision=level):
                results = operator.lowering(call, [filled(each, *given) for each in args], options)
            return [results] if first.container is None else list(results)

        call = Call(
            first.name,
            first.device,
            evaluate,
            tuple(inputs),
            tuple(outputs),
            first.container,
            first.floats,
            first.ints,
            first.random,
            first.fallible,
            first.collective,
        )
        call.default_dtype = first.default_dtype
        return call

    def _merged(self, values: list[Any], where: str) -> Any:
        """What stands for values that the traces have in one place."""
        first = values[0]
        kinds = {type(each) for each in values}
        if kinds == {TensorSpec}:
            shape, stride, offset = (
                self._merged([getattr(each, part) for each in values], where) for part in ("shape", "stride", "offset")
            )
            return TensorSpec.of(first.device, first.dtype, shape, stride, offset)
        if kinds <= {list, tuple} and len(kinds) == 1 and len({len(each) for each in values}) == 1:
            return type(first)(self._merged(list(each), where) for each in zip(*values, strict=True))
        if kinds == {dict} and len({tuple(each) for each in values}) == 1:
            return {key: self._merged([each[key] for each in values], where) for key in first}
        if len(kinds) == 1 and all(each is first or each == first for each in values):
            return first
        if kinds == {int}:
            found = self._sizes.polynomial(values)
            if found is not None:
                return found
        raise self._refused(f"{where} gets {first!r} for one size and {values[1]!r} for another, no polynomial of it")

    def _refused(self, why: str) -> NotImplementedError:
        return NotImplementedError(f"{self._name} cannot be traced for symbolic sizes: {why}. Export it for fixed ones")


def _arguments(call: Call, tensors: list[Placeholder], seeds: list[Placeholder]) -> tuple[list[Any], dict[str, Any]]:
    assert call.arguments is not None
    return call.arguments(tensors, (), seeds)


def _are_equal(tensors: Sequence[Any]) -> bool:
    known = [each.handle.value.array for each in tensors]
    if any(each is None for each in known):
        return False
    first = np.asarray(known[0])
    return all(np.array_equal(first, np.asarray(each)) for each in known)
