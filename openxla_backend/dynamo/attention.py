"""Attention in what Dynamo has traced, before AOTAutograd takes it apart."""

from __future__ import annotations

import torch

from lazy_runtime.platform import xla_devices
from lazy_runtime.recording import attention, flex_attention


def keep_whole(gm: torch.fx.GraphModule) -> None:
    """Has every call of torch's `scaled_dot_product_attention` decide by itself whether it stays one operator, and
    composes `flex_attention` of others. Programs of `torch.export` call the operator, all others the function.
    """
    for module in gm.modules():
        if isinstance(module, torch.fx.GraphModule):
            calls = [node for target in _CALLED for node in module.graph.find_nodes(op="call_function", target=target)]
            for node in calls:
                node.target = attention.traced
            if calls:
                xla_devices.start()  # defines the operator
            flexible = module.graph.find_nodes(op="call_function", target=flex_attention.operator)
            for node in flexible:
                node.target = flex_attention.composed
            if calls or flexible:
                module.recompile()


_CALLED = (
    torch.nn.functional.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention.default,
)
