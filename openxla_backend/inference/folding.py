"""Inference: a batch norm's scale and shift go into the weight and bias of the convolution before it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from lazy_runtime.ops.nn.folding import FOLDING, FoldingProblem

aten = torch.ops.aten

#: Call(like, target, *args) appends a node to the graph, whose result looks like `like`: running the operators on fake
#: tensors to find that out took 0.2 s for a resnet50.
Add = Callable[..., torch.fx.Node]


def fold_batch_norms(graph: torch.fx.Graph, parameters: set[torch.fx.Node]) -> None:
    """Replaces `batch_norm(convolution(x, weight, bias))` by one convolution, where all but `x` are parameters.

    Which are replaced says `lazy_runtime/ops/nn/folding.py`.

    Args:
        parameters: placeholders that hold the same values from call to call.
    """
    for norm in graph.find_nodes(op="call_function", target=aten._native_batch_norm_legit_no_training.default):
        x, weight, bias, mean, variance, _, eps = norm.args
        if not _is_convolution(x):
            continue
        image, kernel, kernel_bias, *geometry = x.args
        statistics = [part for part in (weight, bias, mean, variance) if part is not None]
        folded = [kernel] if kernel_bias is None else [kernel, kernel_bias]
        outputs = {user.args[1]: user for user in norm.users if user.target is operator.getitem}
        refuses = ""
        if len(x.users) != 1:
            refuses = "the convolution has other users"
        elif not parameters.issuperset([*statistics, *folded]):
            refuses = "filters or statistics are no parameters"
        elif set(outputs) != {0} or len(outputs) != len(norm.users):
            refuses = "more of the batch norm is used than its result"
        dtypes = {str(part.meta["val"].dtype).removeprefix("torch.") for part in (*statistics, *folded, image)}
        problem = FoldingProblem(tuple(kernel.meta["val"].shape), tuple(sorted(dtypes)), refuses)
        if FOLDING.choose_packing(problem) is None:
            continue
        arguments = (kernel, kernel_bias, weight, bias, mean, variance, eps)
        looks = kernel.meta["val"], variance.meta["val"]
        with graph.inserting_before(norm):
            add = _adder(graph, norm)
            both = add(looks, torch.ops.lazy_runtime.fold_batch_norm.default, *arguments)
            folded_kernel, shift = (add(look, operator.getitem, both, n) for n, look in enumerate(looks))
            convolution = add(x.meta["val"], aten.convolution.default, image, folded_kernel, shift, *geometry)
        outputs[0].replace_all_uses_with(convolution)
        graph.erase_node(outputs[0])
        graph.erase_node(norm)
        graph.erase_node(x)


def _is_convolution(node: Any) -> bool:
    # a transposed one has its output channels elsewhere, group by group
    return isinstance(node, torch.fx.Node) and node.target is aten.convolution.default and not node.args[6]


def _adder(graph: torch.fx.Graph, origin: torch.fx.Node) -> Add:
    def add(like: Any, target: Any, *args: Any) -> torch.fx.Node:
        node = graph.call_function(target, args)
        node.meta = {**origin.meta, "val": like}
        return node

    return add
