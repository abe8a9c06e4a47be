"""Which implementation computes an operator: one ordered table of kernels for each kind of operator.

A kernel is a row of its table. The first row that accepts a problem computes it, and the last ones together accept all.
A row that refuses says why in words, and a choice keeps these reasons (`debug.kernels`). A row whose kernel reads
weights in an order of its own says how they are packed; inference packs the weights that it keeps by the same table.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jax.errors import InconclusiveDimensionOperation

from ..common import output
from ..compat.torch import schema_of
from ..ir import lowering_context
from ..lowering import aten_bridge, checks


class Refused:
    """Why a kernel does not take a problem. As a condition it is false.

    Attributes:
        reason: in words.
    """

    __slots__ = ("reason",)

    def __init__(self, reason: str):
        self.reason = reason

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"Refused({self.reason!r})"


#: True, or why not: `problem.is_2d or Refused("it is no image")`, joined by `and`.
Verdict = bool | Refused


def on_cpu(platform: str) -> Verdict:
    """Whether a kernel of torch's or of this package can be called on the platform, from the program that is lowered.

    A sharded program calls none: XLA can cut its own operators among devices, a custom call runs whole on each.
    """
    return (platform == "cpu" or Refused(f"it is for the CPU, not for {platform}")) and (
        aten_bridge.available() or Refused("the program is sharded, or the ATen bridge is not built")
    )


def has_wide_vectors() -> Verdict:
    """Whether the processor has the vectors of 512 bits that most kernels of this package are written for."""
    found = torch.backends.cpu.get_cpu_capability()
    return found == "AVX512" or Refused(f"it is for AVX512, the processor has {found}")


def works(is_built: Callable[[], bool], library: str) -> Verdict:
    """Whether a kernel's library is built for this torch, and its trial on this processor succeeds."""
    return is_built() or Refused(f"{library} is not built for this torch, or its trial fails on this processor")


def _everywhere(platform: str) -> Verdict:
    return True


def _no_arguments(problem: Any, weight: torch.Tensor) -> tuple[Any, ...]:
    return ()


class Packing(NamedTuple):
    """How a kernel wants a weight that is kept from call to call.

    Attributes:
        pack: the operator that takes a weight, and `arguments`, and gives it in the kernel's order.
        apply: the operator that computes with the packed weight. None where the plain operator does.
        shape: (weight, arguments) → sizes of the packed weight.
        arguments: (problem, weight) → what `pack` takes beside the weight.
        in_bytes: the packed weight is so many bytes, not numbers of the weight's dtype.
        upcasts: a weight of bfloat16 is packed in float32 where products are faster so (`bfloat16_upcast.py`).
    """

    pack: Any
    apply: Any
    shape: Callable[[torch.Tensor, tuple[Any, ...]], Sequence[int]]
    arguments: Callable[[Any, torch.Tensor], tuple[Any, ...]] = _no_arguments
    in_bytes: bool = False
    upcasts: bool = False


class Kernel(NamedTuple):
    """One implementation of a kind of operators.

    Attributes:
        name: in the table.
        accepts: problem → whether the kernel computes it, and is the fastest that does; the rows before it refused.
        lower: computes it, within a jax trace. None where a packed weight's operator does (`Packing.apply`).
        available: platform → whether the kernel is there: its library, the platform, the processor, the settings.
        thresholds: gives the numbers that `accepts` compares with, by what they are called.
        packing: how it wants a weight that is kept; None for a kernel that takes weights as they are.
    """

    name: str
    accepts: Callable[[Any], Verdict]
    lower: Callable[..., Any] | None = None
    available: Callable[[str], Verdict] = _everywhere
    thresholds: Callable[[], Mapping[str, Any]] = dict
    packing: Packing | None = None


class Choice(NamedTuple):
    """Which row of a table a problem took.

    Attributes:
        kind: of the operator.
        problem: what was to be computed.
        kernel: name of the row; None where no row packs the weight.
        refused: (row, reason) of the rows before it.
        is_packing: it was made for a weight that is kept, before the program was lowered.
    """

    kind: str
    problem: Any
    kernel: str | None
    refused: tuple[tuple[str, str], ...]
    is_packing: bool = False

    def __str__(self) -> str:
        what = f"{self.kind} with a kept weight" if self.is_packing else self.kind
        taken = self.kernel or "the weight stays as it is"
        rows = [f"  not {row}: {reason}" for row, reason in self.refused]
        return "\n".join([f"{what}, {self.problem}: {taken}", *rows])


def sizes(shape: Sequence[int]) -> str:
    """`4x3x32x32`; a size that varies from call to call is `?`."""
    return "x".join("?" if size < 0 else str(size) for size in shape)


class Table:
    """The kernels of one kind of operators, in the order in which they are asked.

    Attributes:
        kind: of the operators.
        rows: the kernels.
    """

    def __init__(self, kind: str, rows: Sequence[Kernel]):
        if kind in tables:
            raise ValueError(f"there are two tables of kernels for {kind}")
        self.kind = kind
        self.rows = tuple(rows)
        tables[kind] = self
        for row in rows:
            if row.packing is not None and row.packing.apply is not None:
                packed_operators.update(schema_of(each).name for each in (row.packing.pack, row.packing.apply))

    def choose(self, problem: Any) -> Kernel:
        """The first kernel that lowers the problem.

        Raises:
            NotImplementedError: none does.
        """
        found, refused = self._first(problem, self.rows)
        if found is None:
            raise NotImplementedError(str(Choice(self.kind, problem, None, refused)))
        return found

    def choose_packing(self, problem: Any) -> Kernel | None:
        """The first kernel that packs the problem's weight, which is kept; None if the weight stays as it is."""
        return self._first(problem, [row for row in self.rows if row.packing is not None], is_packing=True)[0]

    def _first(
        self, problem: Any, rows: Sequence[Kernel], is_packing: bool = False
    ) -> tuple[Kernel | None, tuple[tuple[str, str], ...]]:
        refused: list[tuple[str, str]] = []
        found = None
        for row in rows:
            try:
                verdict = row.accepts(problem)
            except InconclusiveDimensionOperation:
                verdict = Refused("what decides about it depends on a symbolic size")
            if verdict:
                found = row
                break
            refused.append((row.name, verdict.reason if isinstance(verdict, Refused) else "it is not for this"))
        _note(Choice(self.kind, problem, None if found is None else found.name, tuple(refused), is_packing))
        return found, tuple(refused)


#: Kind of operators → its table.
tables: dict[str, Table] = {}


#: Names of the operators that pack weights, and of those that compute with them.
packed_operators: set[str] = set()


# ---- what was chosen

#: How many choices are remembered.
_REMEMBERED = 4096

_choices: deque[Choice] = deque(maxlen=_REMEMBERED)


def _note(choice: Choice) -> None:
    _choices.append(choice)
    chosen = lowering_context.current().choices
    if chosen is not None:
        chosen.append((checks.current_call(), choice))
    if output.is_logged("xla_kernels"):
        output.log("xla_kernels", str(choice))


def choices() -> list[Choice]:
    """The latest choices of this process, oldest first."""
    return list(_choices)


def clear() -> None:
    """Forgets what was chosen."""
    _choices.clear()


@contextlib.contextmanager
def collected() -> Iterator[list[tuple[int, Choice]]]:
    """Receives the choices that the calling thread makes within, each with the number of the call that is lowered
    (`checks.NESTED`).
    """
    found: list[tuple[int, Choice]] = []
    with lowering_context.changed(choices=found):
        yield found
