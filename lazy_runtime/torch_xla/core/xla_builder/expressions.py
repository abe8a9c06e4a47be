"""What the builder builds: expressions over parameters, and computations, which are functions of arrays.

An expression is an operation with its operands and attributes. Its shape is found at once, by jax; its value only where
the computation is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from ....ir import dtypes, lowering_context
from ....lowering import precision
from ....ops import computation as operator
from .rules import RULES


class Builder:
    """Expressions that can be of one computation.

    Args:
        name: for people.
    """

    def __init__(self, name: str):
        self.name = name
        self.parameters: dict[int, Expression] = {}


class Expression:
    """One operation.

    Attributes:
        builder: whose it is.
        kind: which of `rules.RULES`, or "Parameter".
        operands: expressions.
        attributes: keyword arguments of the rule.
        aval: shape and dtype for jax; a tuple of them for a tuple.
    """

    __slots__ = ("attributes", "aval", "builder", "kind", "operands")

    def __init__(
        self, builder: Builder, kind: str, operands: Sequence[Expression], attributes: dict[str, Any], aval: Any
    ):
        self.builder = builder
        self.kind = kind
        self.operands = tuple(operands)
        self.attributes = attributes
        self.aval = aval


def parameter(builder: Builder, number: int, aval: Any) -> Expression:
    """The parameter of this number, from 0 on.

    Raises:
        ValueError: the builder has one of that number.
    """
    if number in builder.parameters:
        raise ValueError(f"{builder.name} has a parameter {number} already: expected {len(builder.parameters)}")
    made = builder.parameters[number] = Expression(builder, "Parameter", (), {"number": number}, aval)
    return made


def create(builder: Builder, kind: str, operands: Sequence[Expression], attributes: dict[str, Any]) -> Expression:
    """An operation on operands of one builder.

    Args:
        kind: XLA's name of it, as `xla::XlaBuilder` has it.
        attributes: a list of expressions among them (`start_indices`) is more operands.

    Raises:
        NotImplementedError: there is no such operation.
        ValueError: an operand is another builder's.
        TypeError, ValueError: what jax says of the operands' shapes and dtypes.
    """
    rule = RULES.get(kind)
    if rule is None:
        raise NotImplementedError(f"the operation {kind!r}: there are {', '.join(sorted(RULES))}")
    attributes = {name: value for name, value in attributes.items() if name != "builder" and value is not None}
    given = len(operands)
    everything = list(operands)
    for name in ("start_indices", "static_operands"):
        found = attributes.get(name)
        if isinstance(found, list | tuple) and found and isinstance(found[0], Expression):
            everything += attributes.pop(name)
    for operand in everything:
        if operand.builder is not builder:
            raise ValueError(f"{kind}: an operand is of {operand.builder.name!r}, and not of {builder.name!r}")
    if len(everything) > given:
        attributes["given"] = given
    with dtypes.x64():
        aval = jax.eval_shape(lambda *values: rule(*values, **attributes), *[each.aval for each in everything])
    return Expression(builder, kind, everything, attributes, aval)


class Computation:
    """A function of arrays: what a builder's parameters become under an expression.

    Args:
        name: for people.
        avals: shapes and dtypes of its parameters; tuples of them for tuples.
        function: parameters → result, an array or a tuple.
    """

    def __init__(self, name: str, avals: Sequence[Any], function: Callable[..., Any]):
        self.name = name
        self.avals = tuple(avals)
        self._function = function
        self._traced: dict[Any, operator.Computation] = {}

    @classmethod
    def of(cls, name: str, root: Expression) -> Computation:
        """What an expression computes of its builder's parameters.

        Raises:
            ValueError: the parameters are not numbered from 0 on.
        """
        found = root.builder.parameters
        if sorted(found) != list(range(len(found))):
            raise ValueError(f"{name}: expected parameters from 0 on, got {sorted(found)}")
        avals = [found[number].aval for number in range(len(found))]
        return cls(name, avals, lambda *values: _evaluate(root, values))

    def __call__(self, *values: Any) -> Any:
        """The result, within a jax trace."""
        return self._function(*values)

    def flat(self, *arrays: Any) -> list[Any]:
        """The arrays of the result, of those of the parameters one after the other."""
        parameters = jax.tree.unflatten(jax.tree.structure(self.avals), arrays)
        return jax.tree.leaves(self(*parameters))

    @property
    def flat_avals(self) -> list[jax.ShapeDtypeStruct]:
        return jax.tree.leaves(self.avals)

    def traced(self, platform: str) -> operator.Computation:
        """It as `lazy_runtime::computation` takes it."""
        key = platform, precision.level()
        if key not in self._traced:
            with lowering_context.changed(precision=key[1]):
                self._traced[key] = operator.trace(self.flat, self.flat_avals, platform, x64=True)
        return self._traced[key]

    @property
    def hlo(self) -> str:
        """HLO text of it, before XLA's optimizations."""
        return self._lowered().as_text(dialect="hlo")

    @property
    def hlo_proto(self) -> bytes:
        """The same as a serialized `HloModuleProto`."""
        return self._lowered().compiler_ir("hlo").as_serialized_hlo_module_proto()

    def _lowered(self) -> Any:
        def flat(*arrays: Any) -> list[Any]:
            return self.flat(*arrays)

        flat.__name__ = self.name  # what jax calls the module
        with dtypes.x64(), lowering_context.changed(precision=precision.level()):
            return jax.jit(flat, keep_unused=True).lower(*self.flat_avals)


def _evaluate(root: Expression, parameters: Sequence[Any]) -> Any:
    """The value of an expression. The ones that it needs come first, however deep: no recursion."""
    values: dict[int, Any] = {}
    waiting = [root]
    while waiting:
        each = waiting[-1]
        if id(each) in values:
            waiting.pop()
            continue
        missing = [operand for operand in each.operands if id(operand) not in values]
        if missing:
            waiting.extend(missing)
            continue
        waiting.pop()
        if each.kind == "Parameter":
            values[id(each)] = parameters[each.attributes["number"]]
        else:
            operands = [values[id(operand)] for operand in each.operands]
            values[id(each)] = RULES[each.kind](*operands, **each.attributes)
    return values[id(root)]
