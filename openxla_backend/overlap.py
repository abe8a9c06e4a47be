"""Inputs that share memory, one of which is written to.

AOTAutograd gives such a graph one input, the memory that they share, and takes the views at the offsets that they had
when it was compiled. Nothing guards these: `f(base[0:3], base[1:4])` and then `f(base[2:5], base[0:3])` would read and
write the first call's elements (also with torch's own `aot_eager` and `inductor`, torch 2.13). So we guard them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import TensorProperty, TensorPropertySource
from torch._guards import TracingContext


def guard_offsets(gm: torch.fx.GraphModule, examples: Sequence[Any], metadata: Any) -> None:
    """Has Dynamo compile again where the storage offsets of overlapping inputs differ from these examples'.

    Args:
        metadata: AOTAutograd's, which says what is written to.
    """
    context = TracingContext.try_get()
    if context is None or metadata is None or not any(info.mutates_data for info in metadata.input_info):
        return
    sharing: dict[Any, list[Any]] = {}
    for node, example in zip(gm.graph.find_nodes(op="placeholder"), examples, strict=True):
        if isinstance(example, torch.Tensor) and example.layout is torch.strided:
            sharing.setdefault(example.untyped_storage()._cdata, []).append(node)
    for nodes in sharing.values():
        for node in nodes if len(nodes) > 1 else ():
            source = getattr(node, "_dynamo_source", None)
            if source is not None:
                offset = TensorPropertySource(source, TensorProperty.STORAGE_OFFSET, None)
                context.guards_context.dynamo_guards.add(offset.make_guard(GuardBuilder.EQUALS_MATCH))
