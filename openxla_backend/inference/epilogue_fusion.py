"""Inference: what follows a convolution or a product of kept weights, a bias, a sum and an activation, is computed by
the same call.

Between two kernels of torch's, a loop of XLA's costs more than its work: the results leave the caches in which the
kernel's threads have them, and the two libraries' threads wake up in turn. oneDNN adds while it writes. It could apply
the activation too, but its own lose a NaN (relu of NaN is 0), so torch's kernel does, in place. On xla torch takes a
linear layer of more than two dimensions apart, into a product, a view and the sum with the bias.
"""

from __future__ import annotations

from typing import Any

import torch

from lazy_runtime.ops.convolution.convolution_kernels import CONVOLUTION
from lazy_runtime.ops.kernels import Table
from lazy_runtime.ops.linalg import packed
from lazy_runtime.ops.linalg.matmul_kernels import MATMUL
from lazy_runtime.ops.registry import arguments

from .prepacking import is_row, is_static

aten = torch.ops.aten
_linear = torch.ops.lazy_runtime.packed_linear.default


def finish(graph: torch.fx.Graph) -> None:
    """Moves what follows convolutions and products with packed weights into them."""
    for target in (*_CONVOLUTIONS, *_applied(MATMUL)):
        for node in graph.find_nodes(op="call_function", target=target):
            _activate(graph, _add(graph, _add_bias(graph, node)))


def _applied(table: Table) -> list[Any]:
    """The operators that compute with a table's packed weights. Each takes a sum, and an activation, too."""
    packings = (kernel.packing for kernel in table.rows)
    return [packing.apply for packing in packings if packing is not None and packing.apply is not None]


_CONVOLUTIONS = _applied(CONVOLUTION)


def _add_bias(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    """The product with the bias that follows, or the node. In 16 bits this rounds once, as torch's own layer on the CPU
    does.
    """
    if node.target is not _linear or node.args[2] is not None:
        return node
    x, weight, _, size = node.args
    path, user = _following(node)
    if user is None or user.target is not aten.add.Tensor or user.kwargs:
        return node
    left, right = user.args
    row: Any = right if left is path[-1] else left
    if not isinstance(row, torch.fx.Node) or not is_row(row, size[0], node.meta["val"].dtype):  # type: ignore[index]
        return node
    return _replace(graph, path, user, (x, weight, row, size))


def _add(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    """The node with a sum that follows, or the node."""
    path, user = _following(node)
    # in 16 bits torch rounds before it adds
    if user is None or user.target is not aten.add.Tensor or user.kwargs or node.meta["val"].dtype != torch.float32:
        return node
    left, right = user.args
    other: Any = right if left is path[-1] else left
    if other is path[-1] or not isinstance(other, torch.fx.Node) or not _looks_like(other, user):
        return node
    if len(path) > 1 and not other.meta["val"].is_contiguous():  # nor has it a view as the product is
        return node
    if _is_ahead(other, node):  # the other one is a convolution too, and comes later: that is the one to add in
        return node
    return _replace(graph, path, user, other=_viewed(graph, user, other, node))


def _activate(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    path, user = _following(node)
    name = None if user is None else packed.IN_PLACE.get(user.target)  # type: ignore[arg-type]
    if user is None or name is None:
        return
    numbers = arguments(user.target, user.args, user.kwargs)[1:]  # type: ignore[arg-type]
    if numbers == ["none"]:  # gelu's approximation; of the one by tanh XLA's is the faster kernel
        numbers = []
    if all(isinstance(number, int | float) for number in numbers):
        _replace(graph, path, user, then=name, numbers=[float(number) for number in numbers])


def _following(node: torch.fx.Node) -> tuple[list[torch.fx.Node], torch.fx.Node | None]:
    """The node and, of a product, the views of it up to what alone uses them, which has the same shape and order."""
    path = [node]
    while (user := _only_user(path[-1])) is not None:
        if node.target is not _linear or user.target not in _VIEWS or not _has_rows_of(user, node):
            break
        path.append(user)
    if user is None or not _looks_like(user, path[-1]):
        return path, None
    if len(path) > 1 and not user.meta["val"].is_contiguous():
        return path, None
    return path, user


_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.clone.default)


def _has_rows_of(view: torch.fx.Node, node: torch.fx.Node) -> bool:
    value = view.meta["val"]
    return is_static(value.shape) and value.shape[-1:] == node.meta["val"].shape[-1:] and value.is_contiguous()


def _replace(
    graph: torch.fx.Graph,
    path: list[torch.fx.Node],
    user: torch.fx.Node,
    operands: tuple[Any, ...] | None = None,
    **further: Any,
) -> torch.fx.Node:
    """Puts a node with more to do where the user of its views is."""
    node = path[0]
    with graph.inserting_before(user):
        made = graph.call_function(node.target, operands or node.args, {**node.kwargs, **further})  # type: ignore[arg-type]
    made.meta = dict(user.meta) if len(path) == 1 else {**user.meta, "val": node.meta["val"]}
    user.replace_all_uses_with(_viewed(graph, user, made, user))
    for each in (user, *reversed(path)):
        graph.erase_node(each)
    return made


def _viewed(graph: torch.fx.Graph, before: torch.fx.Node, x: torch.fx.Node, like: torch.fx.Node) -> torch.fx.Node:
    """`x` in the shape of another node."""
    value = like.meta["val"]
    if x.meta["val"].shape == value.shape:
        return x
    with graph.inserting_before(before):
        view = graph.call_function(aten.view.default, (x, list(value.shape)))
    view.meta = {**x.meta, "val": value}
    return view


def _only_user(node: torch.fx.Node) -> torch.fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _is_ahead(other: torch.fx.Node, node: torch.fx.Node) -> bool:
    return other.target in _CONVOLUTIONS and not other.kwargs and len(other.users) == 1 and other > node


def _looks_like(one: torch.fx.Node, other: torch.fx.Node) -> bool:
    left, right = one.meta.get("val"), other.meta["val"]
    if not isinstance(left, torch.Tensor):
        return False
    return (left.shape, left.dtype, left.device) == (right.shape, right.dtype, right.device)
