"""Which of XLA:CPU's two code generators for fused loops a program gets.

The newer one ("fusion emitters") miscompiles, in jaxlib 0.10.2, an update in place that reads what it has just written:
jax's `y = x[::2]; x.at[::2].set(y.at[1:].set(y[:-1]))` gives other numbers than its parts. A small program takes it
half as long again to compile. The older one computes a loop element by element, without vector instructions, wherever
the result takes the memory of an operand: LLVM's check at run time that the two are apart says no. An exponential of a
million elements then takes five times as long (2.3 against 0.43 ms).

So programs of large tensors have the newer one, unless they hold an update in place, or a loop, in which XLA makes one.

From jaxlib 0.11 on there is no older one, and the newer one still miscompiles (0.12.0). There an optimization barrier
keeps an update's values out of the loop that writes them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax

from ..compat.jaxlib import ir as mlir
from ..compat.jaxlib import stablehlo
from ..ir.graph import Graph

_OPTION = "xla_cpu_use_fusion_emitters"

#: Elements of the largest result from which on a loop's time counts for more than its compilation's.
LARGE = 1 << 18

_UPDATES = frozenset(f"stablehlo.{name}" for name in ("dynamic_update_slice", "scatter", "select_and_scatter", "while"))


def options(graph: Graph, lowered: jax.stages.Lowered) -> dict[str, Any]:
    """XLA's options for a program. Where there is no choice, the program gets barriers around its updates in place."""
    if graph.device.platform != "cpu":
        return {}
    if not is_known(_OPTION, False):
        _keep_updates_apart(lowered)
        return {}
    return {_OPTION: _is_large(graph) and not _updates(lowered)}


def known(platform: str) -> dict[str, Any]:
    """What `options` may depend on beside the program and this package, for the key of what is kept on disk."""
    return {_OPTION: "by program"} if platform == "cpu" else {}


@functools.cache
def is_known(option: str, value: bool) -> bool:
    """Whether XLA takes an option: a program of one constant is compiled with it, once in a process.

    Args:
        option: XLA's name of it.
        value: a value that it takes where there is such an option.
    """
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        constant = jax.jit(lambda: 0).lower()
    try:
        constant.compile(compiler_options={option: value})
    except jax.errors.JaxRuntimeError as error:
        if option in str(error):
            return False
        raise
    return True


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

    _walk(lowered, look)
    return found


def _keep_updates_apart(lowered: jax.stages.Lowered) -> None:
    """Puts a barrier before what each update in place writes, of the lowered program itself."""
    found: list[mlir.Operation] = []

    def look(operation: mlir.Operation) -> mlir.WalkResult:
        if operation.name in ("stablehlo.dynamic_update_slice", "stablehlo.scatter"):
            found.append(operation)
        return mlir.WalkResult.ADVANCE

    _walk(lowered, look)
    for operation in found:
        with operation.location, mlir.InsertionPoint(operation):
            for number in _written(operation):
                operation.operands[number] = stablehlo.OptimizationBarrierOp([operation.operands[number]]).results[0]


def _written(operation: mlir.Operation) -> range:
    """Numbers of the operands that hold the new elements."""
    count = len(operation.operands)
    if operation.name == "stablehlo.scatter":  # N tensors, indices, N times new elements
        return range(count // 2 + 1, count)
    return range(1, 2)


def _walk(lowered: jax.stages.Lowered, look: Callable[[mlir.Operation], mlir.WalkResult]) -> None:
    module: Any = lowered.compiler_ir()
    module.operation.walk(look)
