"""Writes to float64 scalars on the CPU.

Dynamo (torch 2.13, whatever the backend) may look at a graph again, once it knows which numbers it need not keep as
inputs. It takes out a node that stands for such a number and has no user but `item`; that is also true of a write in
place that has no user at all. `b.mul_(0.5)` on a float64 `b` without dimensions was lost, and what read `b` read the
old value. The node to take out is always a placeholder.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from lazy_runtime.compat.dynamo import OutputGraph, remove_tensorified

from .step_capture import is_for

_EXAMPLE = "example_value"  # where Dynamo looks for the number


@functools.cache
def keep_scalar_writes(backends: Sequence[Callable[..., Any]]) -> None:
    """Has Dynamo keep the writes in graphs of these backends. Idempotent.

    Args:
        backends: the functions that Dynamo calls with a graph.
    """
    if not remove_tensorified.is_there():  # a torch without this part of Dynamo loses no writes by it
        return
    take_out = remove_tensorified.get()
    ours = is_for(backends)

    @functools.wraps(take_out)
    def take_out_placeholders(output: OutputGraph) -> None:
        if not ours(output):
            take_out(output)
            return
        hidden = {
            node: node.meta.pop(_EXAMPLE)
            for node in output.graph.nodes
            if node.op != "placeholder" and _EXAMPLE in node.meta
        }
        try:
            take_out(output)
        finally:
            for node, example in hidden.items():
                node.meta[_EXAMPLE] = example

    remove_tensorified.set(take_out_placeholders)
