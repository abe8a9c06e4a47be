"""Pending operators one by one (`XLA_SYNC_TENSORS_OPBYOP`, `XLA_GET_TENSORS_OPBYOP`): slow, and the program that fails
is the operator that fails.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..compilation import linearization
from ..ir.graph import Handle, Node


def nodes(pending: list[Node]) -> Iterator[Node]:
    """The pending nodes that are needed, in order, each to be run before the next is asked for.

    What has been run is taken out of `pending`.
    """
    needed = linearization.needed_nodes(pending)
    handles = []  # a value that only later operators need is an output of its program too
    for node in needed:
        for value in node.inputs:
            if value.node is not None and (value.owner is None or value.owner() is None):
                handle = Handle(value)
                outputs = list(value.node.outputs)
                outputs[value.index] = value.owner
                value.node.outputs = outputs
                handles.append(handle)
    pending[:] = needed
    for node in needed:
        yield node
        pending.pop(0)
