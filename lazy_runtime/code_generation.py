"""Which of XLA:CPU's two code generators for fused loops a program gets.

The newer one ("fusion emitters") miscompiles, in jaxlib 0.10.2, an update in place that reads what it has just written:
jax's `y = x[::2]; x.at[::2].set(y.at[1:].set(y[:-1]))` gives other numbers than its parts. A small program takes it
half as long again to compile. The older one computes a loop element by element, without vector instructions, wherever
the result takes the memory of an operand: LLVM's check at run time that the two are apart says no. An exponential of a
million elements then takes five times as long (2.3 against 0.43 ms).

So programs of large tensors have the newer one, unless they hold an update in place, or a loop, in which XLA makes one.
"""

from __future__ import annotations

import math
from typing import Any

import jax
from jaxlib.mlir import ir as mlir

from .ir import Graph

_OPTION = "xla_cpu_use_fusion_emitters"

#: Elements of the largest result from which on a loop's time counts for more than its compilation's.
LARGE = 1 << 18

_UPDATES = frozenset(f"stablehlo.{name}" for name in ("dynamic_update_slice", "scatter", "select_and_scatter", "while"))


def options(graph: Graph, lowered: jax.stages.Lowered) -> dict[str, Any]:
    """XLA's options for a program."""
    if graph.device.platform != "cpu":
        return {}
    return {_OPTION: _is_large(graph) and not _updates(lowered)}


def known(platform: str) -> dict[str, Any]:
    """What `options` may depend on beside the program and this package, for the key of what is kept on disk."""
    return {_OPTION: "by program"} if platform == "cpu" else {}


def _is_large(graph: Graph) -> bool:
    specs = (spec for call in graph.all_calls() for spec in call.outputs)
    return any(spec is not None and math.prod(spec.shape) >= LARGE for spec in specs)


def _updates(lowered: jax.stages.Lowered) -> bool:
    """Whether the program holds an update in place, or what becomes one."""
    found = False

    def look(operation: mlir.Operation) -> mlir.WalkResult:
        nonlocal found
        found = operation.name in _UPDATES
        return mlir.WalkResult.INTERRUPT if found else mlir.WalkResult.ADVANCE

    module: Any = lowered.compiler_ir()
    module.operation.walk(look)
    return found
