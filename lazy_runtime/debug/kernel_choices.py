"""Which kernels the operators of programs took, and why not those before them in the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..common.source_locations import Line
from ..lowering import checks
from ..ops import kernels

if TYPE_CHECKING:
    from ..ir.graph import Graph


class KernelChoice(NamedTuple):
    """The kernel that an operator of a program took.

    Attributes:
        region: the line that executes the program, or the function that was given to torch.compile; empty for a weight
            that is packed before there is a program.
        line: the user's line of the operator, or empty.
        operator: its name, `aten::convolution`.
        choice: the kernel, and the reasons of those that refused.
    """

    region: str
    line: str
    operator: str
    choice: kernels.Choice

    def __str__(self) -> str:
        where = " ".join(part for part in (self.line or self.region, self.operator) if part)
        return f"{where}: {self.choice}" if where else str(self.choice)


def of_program(
    choices: Sequence[tuple[int, kernels.Choice]], graph: Graph, region: str, lines: Sequence[Line | None]
) -> list[KernelChoice]:
    """The choices of a program.

    Args:
        choices: with the numbers of their calls, as in checks.
        lines: the user's line of each call, where it is known.
    """
    return [KernelChoice(region, *_located(number, graph, lines), choice) for number, choice in choices]


def _located(number: int, graph: Graph, lines: Sequence[Line | None]) -> tuple[str, str]:
    """The line and the name of a call."""
    outer = number & ((1 << checks.NESTED) - 1)
    call = graph.calls[outer]
    line = str(lines[outer] or "") if outer < len(lines) else ""
    if call.nested is not None and number >> checks.NESTED:
        inner = (number >> checks.NESTED) - 1
        line = call.nested.lines.get(inner, "") or line
        call = call.nested.graph.calls[inner]
    return line, call.name


def of_kept_weights() -> list[KernelChoice]:
    """The latest choices for weights that inference keeps, oldest first."""
    return [KernelChoice("", "", "", choice) for choice in kernels.choices() if choice.is_packing]
