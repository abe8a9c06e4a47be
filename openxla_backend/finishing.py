"""Inference: a sum and an activation that follow a convolution of oneDNN's are computed by the same call.

Between two kernels of torch's, a loop of XLA's costs more than its work: the results leave the caches in which the
kernel's threads have them, and the two libraries' threads wake up in turn. oneDNN adds while it writes. It could apply
the activation too, but its own lose a NaN (relu of NaN is 0), so torch's kernel does, in place.
"""

from __future__ import annotations

from typing import Any

import torch

from lazy_runtime.ops import packed
from lazy_runtime.ops.registry import arguments

from .arranging import replace

aten = torch.ops.aten
_convolution = torch.ops.lazy_runtime.packed_convolution.default


def finish(graph: torch.fx.Graph) -> None:
    """Moves what follows convolutions with packed weights into them."""
    for node in graph.find_nodes(op="call_function", target=_convolution):
        finished = _add(graph, node)
        _activate(graph, finished)


def _add(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    """The convolution with a sum that follows, or the convolution."""
    user = _only_user(node)
    # in 16 bits torch rounds before it adds
    if user is None or user.target is not aten.add.Tensor or user.kwargs or node.meta["val"].dtype != torch.float32:
        return node
    left, right = user.args
    other: Any = right if left is node else left
    if other is node or not isinstance(other, torch.fx.Node) or not _looks_like(other, node):
        return node
    if _is_ahead(other, node):  # the other one is a convolution too, and comes later: that is the one to add in
        return node
    return _replace(graph, node, user, other=other)


def _activate(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    user = _only_user(node)
    name = None if user is None else packed.IN_PLACE.get(user.target)  # type: ignore[arg-type]
    if user is None or name is None or not _looks_like(user, node):
        return
    numbers = arguments(user.target, user.args, user.kwargs)[1:]  # type: ignore[arg-type]
    if all(isinstance(number, int | float) for number in numbers):
        _replace(graph, node, user, then=name, numbers=[float(number) for number in numbers])


def _replace(graph: torch.fx.Graph, node: torch.fx.Node, user: torch.fx.Node, **further: Any) -> torch.fx.Node:
    made = replace(graph, user, _convolution, node.args, {**node.kwargs, **further})
    graph.erase_node(node)
    return made


def _only_user(node: torch.fx.Node) -> torch.fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _is_ahead(other: torch.fx.Node, node: torch.fx.Node) -> bool:
    return other.target is _convolution and not other.kwargs and len(other.users) == 1 and other > node


def _looks_like(one: torch.fx.Node, other: torch.fx.Node) -> bool:
    left, right = one.meta.get("val"), other.meta["val"]
    if not isinstance(left, torch.Tensor):
        return False
    return (left.shape, left.dtype, left.device) == (right.shape, right.dtype, right.device)
