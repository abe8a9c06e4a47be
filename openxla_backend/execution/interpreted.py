"""Graphs in which a size depends on data: they are no XLA program, and run operator by operator.

Dynamo breaks a forward graph at such an operator (unless `capture_dynamic_output_shape_ops` is set), but no backward
graph: the gradient of `x[mask] = y` picks as many elements as the mask has. On xla what lies between two such sizes is
recorded, and one program; on the CPU torch's kernels run it.
"""

from __future__ import annotations

from typing import Any

import torch

from lazy_runtime.common import metrics
from lazy_runtime.compat.torch import OpOverload, has_kernel
from lazy_runtime.platform.xla_devices import Device


def is_possible(gm: torch.fx.GraphModule, device: Device) -> bool:
    """Whether all operators of the graph exist outside of programs too."""
    if device.torch_device.type == "xla":
        return True
    operators = {node.target for node in gm.graph.nodes if isinstance(node.target, OpOverload)}
    ours = [operator for operator in operators if operator.namespace == "lazy_runtime"]
    return all(has_kernel(operator.name(), "CPU") for operator in ours)


class InterpretedRun:
    """Runs a graph with the convention of `CompiledGraph`."""

    def __init__(self, gm: torch.fx.GraphModule):
        self._interpreter = torch.fx.Interpreter(gm)

    def __call__(self, arguments: list[Any]) -> list[Any]:
        metrics.count("InterpretedGraph")
        given = list(arguments)
        arguments.clear()
        with torch.no_grad():
            return list(self._interpreter.boxed_run(given))
