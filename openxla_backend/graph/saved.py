"""Which values a backward pass gets from the forward pass, however cheap they would be to compute again."""

from __future__ import annotations

import operator

import torch
from torch.utils.checkpoint import CheckpointPolicy

aten = torch.ops.aten


def keep(joint: torch.fx.GraphModule) -> bool:
    """Has torch's partition save what is random, and what is compared, of a graph with both passes.

    The gradients of `amax`, of maximum norms and their like ask which elements equal the result. Two programs may round
    differently what leads to an element, and then none of those that one of them computes again would be equal.

    Returns:
        whether there is something random.
    """
    random = [node for node in joint.graph.nodes if _is_random(node)]
    for node in (*random, *_compared(joint)):
        for each in (node, *(user for user in node.users if user.target is operator.getitem)):
            each.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return bool(random)


def _is_random(node: torch.fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _compared(joint: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """What is known after the forward pass and asked for equality, but for arguments, which are saved as they are."""
    of_backward: set[torch.fx.Node] = set()
    found = []
    for node in joint.graph.nodes:
        is_tangent = node.op == "placeholder" and node.target.startswith("tangents")
        if is_tangent or any(each in of_backward for each in node.all_input_nodes):
            of_backward.add(node)
        elif node.target in (aten.eq.Tensor, aten.ne.Tensor):
            for each in node.all_input_nodes:
                found += _with_origin(each)
    return found


def _with_origin(node: torch.fx.Node) -> list[torch.fx.Node]:
    """A node and, as far as nothing is rounded on the way, what it is made of."""
    found = []
    while node.op == "call_function" and _is_rounded(node):
        found.append(node)
        if getattr(node.target, "overloadpacket", None) not in _EXACT:
            break
        node = node.all_input_nodes[0]
    return found


_EXACT = frozenset(
    {
        *(aten.abs, aten.neg, aten.detach, aten.alias, aten.clone),
        *(aten.view, aten._unsafe_view, aten.reshape, aten.expand, aten.unsqueeze, aten.squeeze),
        *(aten.permute, aten.transpose, aten.t, aten.select, aten.slice),
    }
)


def _is_rounded(node: torch.fx.Node) -> bool:
    dtype: torch.dtype = node.meta["val"].dtype
    return dtype.is_floating_point or dtype.is_complex
