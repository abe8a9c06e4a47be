"""Activation checkpoints: what a backward graph recomputes stays a computation of its own.

Forward and backward graph are parts of one program. There XLA would find that what is recomputed has been computed
already, or compute it long before the gradient that it is for has arrived: either keeps in memory what the checkpoint
gives up. So what was saved for a recomputation passes a barrier together with the newest gradient.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import guard_or_true
from torch.utils.checkpoint import CheckpointPolicy

aten = torch.ops.aten

_RECOMPUTE = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


def set_apart(gm: torch.fx.GraphModule, static: frozenset[int]) -> None:
    """Puts the barriers into a backward graph, in whose order recomputed operators stand where they are needed.

    Args:
        static: numbers of the placeholders that are parameters or buffers, which no barrier needs to hold back.
    """
    saved = {node for number, node in enumerate(gm.graph.find_nodes(op="placeholder")) if number not in static}
    gradients = {node for node in saved if str(node.target).startswith("tangents")}
    saved -= gradients
    newest = None
    order = {node: position for position, node in enumerate(gm.graph.nodes)}
    for node in list(gm.graph.nodes):
        if node.op != "call_function":
            newest = node if node in gradients else newest
            continue
        if gradients.intersection(node.all_input_nodes):
            gradients.add(node)
            newest = node if _has_elements(node.meta.get("val")) else newest
        elif node.meta.get("recompute") in _RECOMPUTE and newest is not None:
            held = [source for source in node.all_input_nodes if source in saved]
            if held:
                users = {
                    source: [user for user in source.users if user.op != "output" and order[user] >= order[node]]
                    for source in held
                }
                _hold_back(gm.graph, node, users, newest)
                saved.difference_update(held)


def _has_elements(value: Any) -> bool:
    # of a size that is known at the call only (`index_put` through a mask), nobody can tell
    return isinstance(value, torch.Tensor) and not any(guard_or_true(size == 0) for size in value.shape)


def _hold_back(
    graph: torch.fx.Graph,
    first: torch.fx.Node,
    users: dict[torch.fx.Node, list[torch.fx.Node]],
    gradient: torch.fx.Node,
) -> None:
    """These users, of which `first` is the first, take what has come through a barrier with an element of the
    gradient.
    """

    def add(target: Any, *args: Any) -> torch.fx.Node:
        node = graph.call_function(target, args)
        node.meta = {key: value for key, value in first.meta.items() if key == "stack_trace"}
        return node

    with graph.inserting_before(first):
        token = gradient
        for _ in range(gradient.meta["val"].dim()):
            token = add(aten.select.int, token, 0, 0)
        barrier = add(torch.ops.lazy_runtime.optimization_barrier.default, [*users, token])
        for number, (node, takers) in enumerate(users.items()):
            behind = add(operator.getitem, barrier, number)
            behind.meta["val"] = node.meta.get("val")
            for taker in takers:
                taker.replace_input_with(node, behind)
