"""The reports of `PT_XLA_DEBUG_LEVEL`, in PyTorch/XLA's form."""

from __future__ import annotations

import atexit
import functools
from typing import TYPE_CHECKING

from ..common import causes, environment, metrics, output, source_locations
from ..common.source_locations import Line
from ..compilation import compiler, lower
from ..ir.graph import Graph

if TYPE_CHECKING:
    from ..compilation.compiler import Executable
    from .compiling import Compilation

_RULE = "=" * 80
_THIN_RULE = "-" * 80


def compilation(found: Compilation, executable: Executable) -> None:
    """Level 1: a program has been compiled."""
    _summarize_at_exit()
    graph = executable.graph
    output.write(
        _RULE,
        "Compilation Analysis",
        _RULE,
        "Compilation Cause",
        f"  {causes.current(source_locations.is_ours)}",
        *_graph_info(graph),
    )
    output.write(*_frames(), f"Compilation Time: {found.seconds:.3f} s", _THIN_RULE)
    cost = found.cost
    if cost is not None:
        output.write(
            "Post Compilation Analysis",
            _RULE,
            f"Graph input size: {_gigabytes(cost.arguments)}",
            f"Graph output size: {_gigabytes(cost.outputs)}",
            f"Aliased Input size: {_gigabytes(cost.aliased)}",
            f"Intermediate tensor size: {_gigabytes(cost.temporaries)}",
            f"Compiled program size: {_gigabytes(cost.code)}",
            f"Floating-point operations: {cost.flops:.4g}",
            f"Bytes accessed: {_gigabytes(cost.bytes_accessed)}",
            f"Peak device memory: {_gigabytes(cost.peak)}",
        )
    output.write(_THIN_RULE, _RULE)


def execution(graph: Graph) -> None:
    """Level 2: a program is about to run."""
    output.write(
        _RULE,
        "Execution Analysis",
        _RULE,
        "Execution Cause",
        f"  {causes.current(source_locations.is_ours)}",
        *_graph_info(graph),
    )
    output.write(*_frames(), _THIN_RULE, _RULE)


if output.level() >= 2:
    compiler.before_execution.append(execution)


def _graph_info(graph: Graph) -> list[str]:
    return [
        "Graph Info: ",
        f"  Graph Name: {lower.graph_name()}",
        f"  Graph Hash: {graph_hash(graph)}",
        f"  Number of Graph Inputs: {len(graph.leaves)}",
        f"  Number of Graph Outputs: {len(graph.outputs)}",
    ]


def graph_hash(graph: Graph) -> str:
    """32 hexadecimal digits that tell graphs apart within this process."""
    low = hash(graph) & (1 << 64) - 1
    high = hash((low, len(graph.calls))) & (1 << 64) - 1
    return f"{high:016x}{low:016x}"


def _gigabytes(count: int | float) -> str:
    return f"{count / 2**30:.6f} GB"


def _frames() -> list[str]:
    frames = source_locations.stack()
    limit = environment.value("PT_XLA_DEBUG_MAX_FRAME")
    rest = ["  .........."] if len(frames) > limit else []
    return ["Python Frame Triggered Execution: ", *(f"  {described(line)}" for line in frames[:limit]), *rest]


def described(line: Line) -> str:
    """`train (train.py:41)`, as PyTorch/XLA writes frames."""
    return f"{line.function} ({line.file}:{line.number})"


# How often something may happen in how many steps before it is worth a word (PyTorch/XLA's metrics_analysis.cpp)
_PER_STEP = 0.5
_STEPS = 10
_LONG = 300e9  # nanoseconds


def summary() -> list[str]:
    """What the metrics say of a whole run: what was done too often, and operators that had no lowering."""
    counters, measured = metrics.snapshot()
    steps = counters.get("MarkStep", 0)
    found = []
    for name in ("CompileTime", "TransferFromDeviceTime"):
        total = measured[name].total if name in measured else 0
        if steps > _STEPS and total / steps > _PER_STEP:
            found.append(f"{name} too frequent: {total} counts during {steps} steps")
    longest = (
        max((value for _, value in measured["CompileTime"].samples), default=0) if "CompileTime" in measured else 0
    )
    if longest > _LONG:
        found.append(f"CompileTime too long: longest instance took {longest / 1e9:.0f} s")
    operators = [name for name in counters if name.startswith("aten::")]
    if operators:
        found.append(f"Op(s) not lowered: {', '.join(operators)}")
    return found


@functools.cache
def _summarize_at_exit() -> None:
    """Has the summary written when the process ends."""

    def write() -> None:
        found = summary()
        if found:
            output.write(*found)

    atexit.register(write)
