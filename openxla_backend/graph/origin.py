"""Where a compiled graph comes from, for reports of compiles (`lazy_runtime.debug`)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from lazy_runtime.common import config, source_locations
from lazy_runtime.compat.tracing import CompileContext
from lazy_runtime.debug.compiling import Origin

if TYPE_CHECKING:
    from .fx import Program


class Region(NamedTuple):
    """A function that Dynamo compiles, once for each set of its guards.

    Attributes:
        key: Dynamo's number of it, and which part of it this is.
        name: `train.py:41`, the line of its first operator.
    """

    key: tuple[int, str]
    name: str

    def parameters(self) -> Region:
        """That part of it which depends on parameters alone (`constant_hoisting.py`)."""
        return Region((self.key[0], "parameters"), f"the parameters of {self.name}")


def region(gm: torch.fx.GraphModule) -> Region:
    """The function that is being compiled into this graph; called while Dynamo compiles it."""
    compile_id = CompileContext.current_compile_id()
    number = getattr(compile_id, "frame_id", None)
    backward = any(str(node.target).startswith("tangents") for node in gm.graph.find_nodes(op="placeholder"))
    line = next((found for node in gm.graph.nodes if (found := _outermost(node)) is not None), None)
    name = str(line) if line is not None else "a compiled function"
    key = id(gm) if number is None else number
    return Region((key, "backward"), f"the backward pass of {name}") if backward else Region((key, "forward"), name)


def origin(found: Region, program: Program) -> Origin:
    """What `debug.compiling.ready` wants to know of a program."""
    recorded = [source_locations.parse(line) for line in program.recorded]
    return Origin("openxla", found.key, found.name, recorded, [None] * len(program.graph.leaves))


def scopes(program: Program) -> Sequence[str]:
    """For each call of a program, what its instructions are named after in HLO's metadata: the operator and its line.
    Empty without `XLA_HLO_DEBUG`.
    """
    if not config.hlo_debug():
        return ()
    found = zip(program.graph.calls, map(source_locations.parse, program.recorded), strict=True)
    return [f"{call.name}[{f'{line.function}({line})' if line else ''}]" for call, line in found]


def show(gm: torch.fx.GraphModule, program: Program) -> None:
    """`XLA_DYNAMO_DEBUG`: what Dynamo has handed over, and what was made of it."""
    text = gm.print_readable(print_output=False)
    print(f"Graph from Dynamo and AOTAutograd:\n{text}\nProgram:\n{program.graph}\n", file=sys.stderr, flush=True)


def _outermost(node: torch.fx.Node) -> source_locations.Line | None:
    """The line of the compiled function itself, of those that Dynamo keeps for an operator."""
    for text in (node.meta.get("stack_trace") or "").splitlines():
        line = source_locations.parse(text.strip())
        if line is not None:
            return line
    return None
