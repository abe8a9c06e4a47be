"""Inputs that share memory, one of which is written to.

AOTAutograd gives such a graph one input, the memory that they share, and takes the views at the offsets that they had
when it was compiled. Nothing guards these: `f(base[0:3], base[1:4])` and then `f(base[2:5], base[0:3])` would read and
write the first call's elements. Nor does anything guard that inputs lay apart: after `f(x, y)`,
`f(base[0:3], base[1:4])` would read what is not written yet. (Both also with torch's own `aot_eager` and `inductor`,
torch 2.13.) So we guard them, in graphs that write to an input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lazy_runtime.compat.dynamo import GuardBuilder, TensorProperty, TensorPropertySource, guard_globals, source_of
from lazy_runtime.compat.torch import storage_address_of
from lazy_runtime.compat.tracing import TracingContext
from lazy_runtime.tensor.xla_tensor import sharing


def guard(gm: torch.fx.GraphModule, examples: Sequence[Any], metadata: Any) -> None:
    """Has Dynamo compile again where inputs share memory otherwise than these examples, or where the storage offsets of
    those that do are others.

    Args:
        metadata: AOTAutograd's, which says what is written to.
    """
    context = TracingContext.try_get()
    if context is None or metadata is None or not any(info.mutates_data for info in metadata.input_info):
        return
    inputs = []  # (number, source, example)
    for number, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        example, source = examples[number], source_of(node)
        if getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False):
            continue  # a Python number, which a guard does not see as the tensor that the graph gets
        if isinstance(example, torch.Tensor) and example.layout is torch.strided and source is not None:
            inputs.append((number, source, example))
    known = context.guards_context.dynamo_guards
    memory = [storage_address_of(example.untyped_storage()) for _, _, example in inputs]
    for (_, source, _), its in zip(inputs, memory, strict=True):
        if memory.count(its) > 1:
            offset = TensorPropertySource(source, TensorProperty.STORAGE_OFFSET, None)
            known.add(offset.make_guard(GuardBuilder.EQUALS_MATCH))
    _guard_sharing(known, inputs, _written(metadata, len(examples)), frozenset(metadata.static_input_indices or ()))


def _written(metadata: Any, count: int) -> frozenset[int]:
    """Numbers of the inputs that may be written to: all of them where AOTAutograd counts others than Dynamo, since some
    are one to it.
    """
    infos = metadata.input_info
    if len(infos) != count:
        return frozenset(range(count))
    return frozenset(number for number, info in enumerate(infos) if info.mutates_data)


def _guard_sharing(
    known: Any, inputs: Sequence[tuple[int, Any, torch.Tensor]], written: frozenset[int], static: frozenset[int]
) -> None:
    """Guards with whom those that are written to share memory. Parameters, buffers and an optimizer's state are left
    out: their memory is theirs, and a step has hundreds of them.

    Args:
        inputs: (number, source, example) of each.
    """
    asked = [(number in written, source, example) for number, source, example in inputs if number not in static]
    asked.sort(key=lambda each: not each[0])
    count = sum(is_written for is_written, _, _ in asked)
    if not count or len(asked) == 1:
        return
    sources = [source for _, source, _ in asked]
    expected = sharing(tuple(example for _, _, example in asked), count)

    def create(builder: Any, guard: Any) -> None:
        names = ", ".join(_expression(source) for source in sources)
        code = f"___sharing(({names},), {count}) == {expected}"
        builder.add_python_lambda_leaf_guard_to_root(
            [code], [code], closure_vars={**guard_globals(), "___sharing": sharing}
        )

    known.add(sources[0].make_guard(create))


def _expression(source: Any) -> str:
    """What the input is in a guard's Python code."""
    name: Any = source.name
    return str(name() if callable(name) else name)  # a method before torch 2.12
