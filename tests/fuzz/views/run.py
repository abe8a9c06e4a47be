"""Runs a program on the CPU and on the three roads of xla, and says what differs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from lazy_runtime.torch_xla.experimental import eager_mode_context

from ..difference import Difference, failure, forget_what_is_pending, kind_of
from .language import Look, Machine, Program, Raised

ROADS = ("lazy", "eager", "compile")
_numbers = itertools.count()


def _different(kind: str, text: str) -> Difference:
    return Difference("", kind, text)


class Outcome(NamedTuple):
    """What a program has shown.

    Attributes:
        raised: (statement's number, exception) of what raised.
        reads: what it has read.
        looks: how each variable looks at the end.
        contents: all values and gradients at the end.
        touched: all values after a write through each variable, which tells what shares memory; None if there was none.
    """

    raised: dict[int, Raised]
    reads: list[Any]
    looks: dict[str, Look]
    contents: dict[str, torch.Tensor]
    touched: dict[str, torch.Tensor] | None


def interpret(program: Program, device: str, touch: bool = True) -> Outcome:
    """Runs the program statement by statement.

    Args:
        touch: writes through each variable at the end.
    """
    machine = Machine(device)
    raised = {}
    for number, statement in enumerate(program.statements):
        error = machine.step(statement)
        if error is not None:
            raised[number] = error
    return _outcome(machine, raised, touch)


def compile_and_run(program: Program, device: str, backend: str) -> Outcome:
    """Runs `before` and `after` statement by statement, and `inside` as one compiled function, whose statements must
    not raise.
    """
    machine = Machine(device)
    raised = {number: error for number, line in enumerate(program.before) if (error := machine.step(line)) is not None}
    arguments = list(machine.names)
    results = _assigned(program.inside, arguments)
    source = [f"def compiled({', '.join(arguments)}):", *(f"    {line}" for line in program.inside)]
    source.append(f"    return {{{', '.join(f'{name!r}: {name}' for name in results)}}}")
    scope: dict[str, Any] = dict(machine.globals)
    # a name of its own: Dynamo makes sizes symbolic that have changed since it last compiled a function of this place
    exec(compile("\n".join(source), f"<program {next(_numbers)}>", "exec"), scope)
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


def _outcome(machine: Machine, raised: dict[int, Raised], touch: bool = True) -> Outcome:
    looks, contents = machine.looks(), machine.contents()
    if not touch:
        return Outcome(raised, machine.reads, looks, contents, None)
    machine.touch()
    return Outcome(raised, machine.reads, looks, contents, machine.contents())


# ---- comparing


def difference(expected: Outcome, got: Outcome, loose: bool = False) -> Difference | None:
    """What differs; None if nothing does.

    Args:
        loose: what the compiler may change is not compared: which variables are one object, and version counters, which
            count the writes of the compiled function instead of the program's.
    """
    for number in sorted(expected.raised | got.raised):
        wanted, found = expected.raised.get(number), got.raised.get(number)
        if wanted != found:
            said = [kind_of(f"{error.type}: {error.message}") if error else "nothing" for error in (wanted, found)]
            return _different(f"raised {said}", f"statement {number}: {wanted} on the CPU, {found} on xla")
    if expected.reads != got.reads and repr(expected.reads) != repr(got.reads):
        return _different("reads", f"reads: {expected.reads} on the CPU, {got.reads} on xla")
    if list(expected.looks) != list(got.looks):
        return _different("variables", f"variables: {list(expected.looks)} on the CPU, {list(got.looks)} on xla")
    for name, look in expected.looks.items():
        for field, wanted, found in zip(Look._fields, look, got.looks[name], strict=True):
            if wanted != found and not (loose and field in ("version", "same")):
                return _different(field, f"{name}: {field} {wanted} on the CPU, {found} on xla")
    found = _different_values(expected.contents, got.contents, "")
    if found is None and expected.touched is not None and got.touched is not None:
        found = _different_values(expected.touched, got.touched, " after a write through each variable")
    return found


def _different_values(expected: dict[str, torch.Tensor], got: dict[str, torch.Tensor], when: str) -> Difference | None:
    if list(expected) != list(got):
        return _different(f"gradients{when}", f"tensors{when}: {list(expected)} on the CPU, {list(got)} on xla")
    for name, wanted in expected.items():
        found = got[name].cpu()
        if not _equal(wanted, found):
            return _different(f"values{when}", f"{name}{when}: {wanted.tolist()} on the CPU, {found.tolist()} on xla")
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


def check(program: Program, roads: Sequence[str] = ROADS) -> Difference | None:
    """The first difference between the CPU and xla, on these roads."""
    expected = interpret(program, "cpu")
    runs = {"lazy": _lazy, "eager": _eager, "compile": _compiled}
    for road in roads:
        try:
            found = runs[road](program, expected)
        except Exception as error:  # what belongs to no statement: a value that cannot be computed
            found = failure(error)
        if found is not None:
            forget_what_is_pending()
            return found._replace(road=road)
    return None


def _lazy(program: Program, expected: Outcome) -> Difference | None:
    return difference(expected, interpret(program, "xla:0"))


def _eager(program: Program, expected: Outcome) -> Difference | None:
    with eager_mode_context(True):
        # what shares memory does not depend on when operators run: the lazy road has seen it
        return difference(expected, interpret(program, "xla:0", touch=False))


def _compiled(program: Program, expected: Outcome) -> Difference | None:
    first = len(program.before)
    inside = tuple(line for number, line in enumerate(program.inside, first) if number not in expected.raised)
    if not inside:
        return None
    if inside != program.inside:
        program = program._replace(inside=inside)
        expected = interpret(program, "cpu")
    try:
        found = difference(expected, compile_and_run(program, "xla:0", "openxla"), loose=True)
    except Exception as error:
        found = failure(error)
    if found is None or any(message in found.text for message in _REFUSED) or _is_torchs_own(program, expected):
        return None
    return found


#: Errors that are no differences.
_REFUSED = (
    # an argument is what the user's tensor shows, not the memory that it is a view of
    "reaches elements that the xla tensor",
    "are out of bounds for storage of size",
    "which cannot grow under them",  # memory is what it is for as long as several tensors share it
    # AOTAutograd's own (torch 2.13, on the CPU too): arguments that are views of each other, one of them written to.
    # Here they come about where the graph breaks at a size that depends on data, which the CPU's need not
    "incorrect out shape after application of ViewMeta sequence",
    # AOTAutograd's refusal of an argument whose looks an earlier graph has changed (`unsqueeze_`), beside a view of it:
    # on xla the one has no base and the other one's is another tensor of the same memory
    "mixed autograd ._base states",
)


def _is_torchs_own(program: Program, expected: Outcome) -> bool:
    """Whether Dynamo or AOTAutograd changes what the program means by itself, on CPU tensors."""
    for backend in ("eager", "aot_eager"):
        try:
            if difference(expected, compile_and_run(program, "cpu", backend), loose=True) is not None:
                return True
        except Exception:
            return True
    return False
