"""Runs a program on the CPU and on the three roads of xla, and says what differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from lazy_runtime.experimental import eager_mode_context

from .language import Look, Machine, Program, Raised

ROADS = ("lazy", "eager", "compile")


class Outcome(NamedTuple):
    """What a program has shown.

    Attributes:
        raised: (statement's number, exception) of what raised.
        reads: what it has read.
        looks: how each variable looks at the end.
        contents: all values and gradients at the end.
        touched: all values after a write through each variable, which tells what shares memory.
    """

    raised: dict[int, Raised]
    reads: list[Any]
    looks: dict[str, Look]
    contents: dict[str, torch.Tensor]
    touched: dict[str, torch.Tensor]


def interpret(program: Program, device: str) -> Outcome:
    """Runs the program statement by statement."""
    machine = Machine(device)
    raised = {}
    for number, statement in enumerate(program.statements):
        error = machine.step(statement)
        if error is not None:
            raised[number] = error
    return _outcome(machine, raised)


def compile_and_run(program: Program, device: str, backend: str) -> Outcome:
    """Runs `before` and `after` statement by statement, and `inside` as one compiled function, whose statements must
    not raise."""
    machine = Machine(device)
    raised = {number: error for number, line in enumerate(program.before) if (error := machine.step(line)) is not None}
    arguments = list(machine.names)
    results = _assigned(program.inside, arguments)
    source = [f"def compiled({', '.join(arguments)}):", *(f"    {line}" for line in program.inside)]
    source.append(f"    return {{{', '.join(f'{name!r}: {name}' for name in results)}}}")
    scope: dict[str, Any] = dict(machine.globals)
    exec("\n".join(source), scope)
    torch._dynamo.reset()
    function = torch.compile(scope["compiled"], backend=backend)
    found = function(*machine.names.values())
    machine.names = {name: value for name, value in {**machine.names, **found}.items() if name in results}
    first = len(program.before) + len(program.inside)
    raised |= {
        first + number: error for number, line in enumerate(program.after) if (error := machine.step(line)) is not None
    }
    return _outcome(machine, raised)


def _assigned(statements: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """The variables that there are after these statements."""
    names = dict.fromkeys(arguments)
    for statement in statements:
        if statement.startswith("del "):
            names.pop(statement[4:])
            continue
        targets, equals, _ = statement.partition(" = ")
        if equals and all(target.strip().isidentifier() for target in targets.rstrip(",").split(",")):
            names |= dict.fromkeys(target.strip() for target in targets.rstrip(",").split(","))
    return list(names)


def _outcome(machine: Machine, raised: dict[int, Raised]) -> Outcome:
    looks, contents = machine.looks(), machine.contents()
    machine.touch()
    return Outcome(raised, machine.reads, looks, contents, machine.contents())


# ---- comparing


def difference(expected: Outcome, got: Outcome, loose: bool = False) -> str | None:
    """What differs, for people; None if nothing does.

    Args:
        loose: what the compiler may change is not compared: which variables are one object, and version counters, which
            count the writes of the compiled function instead of the program's.
    """
    for number in sorted(expected.raised | got.raised):
        if expected.raised.get(number) != got.raised.get(number):
            return f"statement {number}: {expected.raised.get(number)} on the CPU, {got.raised.get(number)} on xla"
    if expected.reads != got.reads and repr(expected.reads) != repr(got.reads):
        return f"reads: {expected.reads} on the CPU, {got.reads} on xla"
    if list(expected.looks) != list(got.looks):
        return f"variables: {list(expected.looks)} on the CPU, {list(got.looks)} on xla"
    for name, look in expected.looks.items():
        for field, wanted, found in zip(Look._fields, look, got.looks[name], strict=True):
            if wanted != found and not (loose and field in ("version", "same")):
                return f"{name}: {field} {wanted} on the CPU, {found} on xla"
    return _different(expected.contents, got.contents, "") or _different(
        expected.touched, got.touched, " after a write through each variable"
    )


def _different(expected: dict[str, torch.Tensor], got: dict[str, torch.Tensor], when: str) -> str | None:
    if list(expected) != list(got):
        return f"tensors{when}: {list(expected)} on the CPU, {list(got)} on xla"
    for name, wanted in expected.items():
        found = got[name]
        if not _equal(wanted, found):
            return f"{name}{when}: {wanted.tolist()} on the CPU, {found.tolist()} on xla"
    return None


def _equal(x: torch.Tensor, y: torch.Tensor) -> bool:
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    if not (x.dtype.is_floating_point or x.dtype.is_complex):
        return torch.equal(x, y)
    # small integers are exact in every order; what has grown beyond 2**24 is rounded, by each side in its own order
    finite = x[x.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    return torch.allclose(x, y, rtol=1e-6, atol=1e-6 * largest if largest > 2**24 else 0.0, equal_nan=True)


# ---- roads


def check(program: Program, roads: Sequence[str] = ROADS) -> None:
    """Raises AssertionError, with the program, if it differs on any of the roads."""
    expected = interpret(program, "cpu")
    runs = {"lazy": _lazy, "eager": _eager, "compile": _compiled}
    for road in roads:
        try:
            found = runs[road](program, expected)
        except Exception as error:  # what belongs to no statement: a value that cannot be computed
            raise AssertionError(f"{road}: {type(error).__name__}: {error}\n{program}") from error
        assert found is None, f"{road}: {found}\n{program}"


def _lazy(program: Program, expected: Outcome) -> str | None:
    return difference(expected, interpret(program, "xla:0"))


def _eager(program: Program, expected: Outcome) -> str | None:
    with eager_mode_context(True):
        return difference(expected, interpret(program, "xla:0"))


def _compiled(program: Program, expected: Outcome) -> str | None:
    first = len(program.before)
    inside = tuple(line for number, line in enumerate(program.inside, first) if number not in expected.raised)
    if not inside:
        return None
    program = program._replace(inside=inside)
    expected = interpret(program, "cpu")
    try:
        found = difference(expected, compile_and_run(program, "xla:0", "openxla"), loose=True)
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    if found is None or _is_torchs_own(program, expected):
        return None
    return found


def _is_torchs_own(program: Program, expected: Outcome) -> bool:
    """Whether Dynamo or AOTAutograd changes what the program means by itself, on CPU tensors."""
    for backend in ("eager", "aot_eager"):
        try:
            if difference(expected, compile_and_run(program, "cpu", backend), loose=True) is not None:
                return True
        except Exception:
            return True
    return False
