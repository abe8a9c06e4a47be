"""The reports of `PT_XLA_DEBUG_LEVEL`, in PyTorch/XLA's form."""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ..common import environment, metrics, output, source_locations
from ..common.source_locations import Line
from ..compilation import compiler, lower
from ..ir.graph import Graph

if TYPE_CHECKING:
    from ..compilation.compiler import Executable
    from .compiling import Compilation

_RULE = "=" * 80
_THIN_RULE = "-" * 80

# Files of this package, or functions in them, that users call, and what an execution that comes from there is called.
# The outermost one that the user's code has called is the cause; behind a compiled call, what it is doing just now.
_CAUSES = {
    "torch_xla/distributed/parallel_loader.py": "torch_xla.sync in parallel loader at step end",
    "torch_xla/debug/profiler.py:__exit__": "torch_xla.sync when exiting a profiler StepTrace region",
    "regions/compiling.py:_clear_pending": (
        "torch_xla.compile clear the pending graph prior calling the target function"
    ),
    "regions/compiling.py:_execute": "torch_xla.compile",
    "torch_xla/experimental/eager.py": "switch to or from eager mode",
    "torch_xla/core/xla_model.py": "user torch_xla.sync",
    "torch_xla/torch_xla.py": "user torch_xla.sync",
    "recording/fallback.py": "an operator without a lowering runs on the CPU",
}
_registered: dict[str, str] = {}  # file → what is being done in it, whoever has called it
_READ = "most likely user code trying to access tensor value before torch_xla.sync"


def register_causes(causes: Mapping[str, str]) -> None:
    """Says what is being done when something is executed or compiled from within these files.

    Args:
        causes: the full name of a file → the words.
    """
    _registered.update(causes)


def compilation(found: Compilation, executable: Executable) -> None:
    """Level 1: a program has been compiled."""
    _summarize_at_exit()
    graph = executable.graph
    output.write(_RULE, "Compilation Analysis", _RULE, "Compilation Cause", f"  {cause()}", *_graph_info(graph))
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
    output.write(_RULE, "Execution Analysis", _RULE, "Execution Cause", f"  {cause()}", *_graph_info(graph))
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


def cause() -> str:
    """Why something is executed or compiled now, in PyTorch/XLA's words."""
    found = _READ
    for file, function in _stack():
        if file in _registered:
            return _registered[file]
        inside = _inside(file)
        if not inside and not source_locations.is_ours(file):
            break  # the user's code
        found = _CAUSES.get(inside) or _CAUSES.get(f"{inside}:{function}") or found
    return found


def _stack() -> Iterator[tuple[str, str]]:
    frame = sys._getframe(1)
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_code.co_name
        frame = frame.f_back  # type: ignore[assignment]


_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def _inside(file: str) -> str:
    """The name of one of this package's files within it; empty for others."""
    return file[len(_PACKAGE) :].replace(os.sep, "/") if file.startswith(_PACKAGE) else ""


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
