"""Graphs as text: PyTorch/XLA's IR, Graphviz, HLO, StableHLO."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..common import source_locations
from ..ir import dtypes
from ..ir.graph import Graph, Nested, Node
from ..ir.spec import TensorSpec
from .arguments import PRECISION, parts, shown

if TYPE_CHECKING:
    import jax

    from ..compilation.linearization import Linearized


def text(tensors: Sequence[torch.Tensor]) -> str:
    """What these tensors wait for, one line per operator, in PyTorch/XLA's form."""
    return render(of_tensors(tensors), "text")


def dot(tensors: Sequence[torch.Tensor]) -> str:
    """The same for Graphviz: `dot -Tsvg`."""
    return render(of_tensors(tensors), "dot")


def hlo(tensors: Sequence[torch.Tensor]) -> str:
    """The same as XLA's HLO text, before XLA's optimizations."""
    return render(of_tensors(tensors), "hlo")


def hlo_proto(tensors: Sequence[torch.Tensor]) -> bytes:
    """The same as a serialized `HloModuleProto`."""
    return hlo_proto_of(of_tensors(tensors))


def hlo_of(numbered: Linearized, name: str = "") -> str:
    """A graph as HLO text.

    Args:
        name: of the module.
    """
    with named(name):
        return _hlo(numbered)


def hlo_proto_of(numbered: Linearized, name: str = "") -> bytes:
    """A graph as a serialized `HloModuleProto`.

    Args:
        name: of the module.
    """
    with named(name):
        module: Any = _lowered(numbered).compiler_ir("hlo")
    return module.as_serialized_hlo_module_proto()


@contextlib.contextmanager
def named(name: str) -> Iterator[None]:
    """What is lowered within the block is called so."""
    from ..compilation import lower

    outer, lower.thread.name = lower.thread.name, name or lower.thread.name
    try:
        yield
    finally:
        lower.thread.name = outer


def summary(node: Node) -> str:
    """One operator, with where it is in the program and its results' shapes, as PyTorch/XLA's errors have it."""
    shapes = [_shape(spec) for spec in node.call.outputs if spec is not None]
    shape = shapes[0] if len(shapes) == 1 else f"({', '.join(shapes)})"
    name = node.call.name.partition(".")[0]
    return f"[{getattr(node, 'scope', '')}] {name}, xla_shape={shape}, dynamic_dims: ()"


def signature(node: Node) -> str:
    """One operator, with its results and the values of its arguments."""
    shapes = [_shape(spec) for spec in node.call.outputs if spec is not None]
    shape = shapes[0] if len(shapes) == 1 else f"({', '.join(shapes)})"
    return ", ".join([f"{shape} {node.call.name}", *_attributes(node), *_location(node)])


def stablehlo(tensors: Sequence[torch.Tensor] | None = None) -> str:
    """The same as StableHLO text; by default of everything that is pending on the current device."""
    return render(of_tensors(tensors), "stablehlo")


def stablehlo_bytecode(tensors: Sequence[torch.Tensor] | None = None) -> bytes:
    """The same as StableHLO bytecode, which MLIR's tools read."""
    stream = io.BytesIO()
    module: Any = _lowered(of_tensors(tensors)).compiler_ir("stablehlo")
    module.operation.write_bytecode(stream)
    return stream.getvalue()


def of_tensors(tensors: Sequence[torch.Tensor] | None) -> Linearized:
    """The pending graph that these tensors (by default, all that are pending on the current device) wait for.

    Raises:
        TypeError: one of them is not an xla tensor.
        ValueError: there are none, or they are on several devices.
    """
    from ..compilation import linearization
    from ..platform import xla_devices
    from ..tensor.xla_tensor import unwrap

    inner = []
    if tensors is None:
        device, handles = xla_devices.get(), None
    else:
        inner = [unwrap(tensor) for tensor in tensors]
        devices = {tensor.spec.device for tensor in inner}
        if len(devices) != 1:
            raise ValueError(f"expected tensors on one xla device, got {len(inner)} tensors on {len(devices)} devices")
        (device,) = devices
        handles = {tensor.handle for tensor in inner}
    with device.lock:
        numbered = linearization.linearize(device, device.pending[:], donate=False, wanted=handles)
    if handles is None:
        return numbered
    ready = [(tensor.handle, tensor.spec) for tensor in inner if tensor.handle.value.node is None]
    return _with_buffers(numbered, ready)


def _with_buffers(numbered: Linearized, ready: Sequence[tuple[Any, TensorSpec]]) -> Linearized:
    """The graph with tensors that wait for nothing among its leaves and outputs."""
    leaves, specs = list(numbered.leaves), list(numbered.graph.leaves)
    outputs, live = list(numbered.graph.outputs), list(numbered.live)
    for handle, spec in ready:
        if handle.value not in leaves:
            leaves.append(handle.value)
            specs.append(spec)
        outputs.append(-1 - leaves.index(handle.value))
        live.append(handle)
    channels_last = tuple(number for number, value in enumerate(leaves) if value.channels_last)
    graph = numbered.graph._replace(leaves=tuple(specs), outputs=tuple(outputs), channels_last=channels_last)
    return numbered._replace(graph=graph, leaves=leaves, live=live)


def render(numbered: Linearized, form: str) -> str:
    """A graph as "text", "dot", "hlo" or "stablehlo"."""
    return _FORMS[form](numbered)


def scopes(nodes: Sequence[Node]) -> list[str]:
    """For each operator, what its instructions are named after in HLO's metadata: the part of the program, the operator
    and its stack.
    """
    return [
        (f"{part}/" if (part := getattr(node, "scope", "")) else "")
        + f"{node.call.name}[{' < '.join(f'{line.function}({line})' for line in getattr(node, 'stack', ()))}]"
        for node in nodes
    ]


def _lowered(numbered: Linearized) -> jax.stages.Lowered:
    from ..compilation import compiler
    from ..compilation.plan import CompilePlan
    from ..tensor import sharding

    graph = numbered.graph
    if graph.device.grid is not None and all(value.array is not None for value in numbered.leaves):
        graph = sharding.place(graph, numbered.leaves, numbered.live)
    plan = CompilePlan(graph, scopes=scopes(numbered.nodes) if source_locations.keep_stacks else ())
    return compiler.lowered(plan)


def _hlo(numbered: Linearized) -> str:
    return _lowered(numbered).as_text(dialect="hlo", debug_info=source_locations.keep_stacks)


def _stablehlo(numbered: Linearized) -> str:
    return _lowered(numbered).as_text(dialect="stablehlo", debug_info=source_locations.keep_stacks)


# ---- PyTorch/XLA's IR


class _Item(NamedTuple):
    """A leaf or an operator of a graph.

    Attributes:
        shapes: of its results.
        name: of the operator.
        operands: (number of the item, of its results) pairs.
        attributes: in order.
        roots: numbers of the graph's outputs among its results.
    """

    shapes: list[str]
    name: str
    operands: list[tuple[int, int]]
    attributes: list[str]
    roots: list[int]


_Place = dict[int, tuple[int, int]]  # slot of a graph → (item, result)


def _items(numbered: Linearized) -> list[_Item]:
    graph = numbered.graph
    place: _Place = {}
    items: list[_Item] = []
    for number, (spec, value) in enumerate(zip(graph.leaves, numbered.leaves, strict=True)):
        place[-1 - number] = len(items), 0
        attributes = [f"device={_device(spec)}"]
        line = getattr(value, "line", None)
        if line is not None:
            attributes.append(f"location={line.function}@{line}")
        items.append(_Item([_shape(spec)], "xla::device_data", [], attributes, []))
    _add_operators(items, graph, numbered.nodes, place)
    for root, output in enumerate(graph.outputs):
        items[place[output][0]].roots.append(root)
    return items


def _add_operators(items: list[_Item], graph: Graph, nodes: Iterable[Node], place: _Place) -> None:
    """Adds the operators of a graph, and those of the graphs that are calls of it.

    Args:
        place: has the leaves, and is given all other slots.
    """
    slot = 0
    operands = iter(graph.operands)
    for node in nodes:
        call = node.call
        inputs = [place[next(operands)] for _ in call.inputs]
        if call.nested is None:
            results = [(len(items), result) for result in range(len(call.outputs))]
            shapes = [_shape(spec) for spec in call.outputs if spec is not None]
            items.append(_Item(shapes, call.name, inputs, _attributes(node) + _location(node), []))
        else:
            inner = {-1 - number: source for number, source in enumerate(inputs)}
            _add_operators(items, call.nested.graph, _inner_nodes(node, call.nested), inner)
            results = [inner[output] for output in call.nested.graph.outputs]
        place.update(enumerate(results, slot))
        slot += len(results)


def _inner_nodes(node: Node, nested: Nested) -> Iterator[Node]:
    """The operators of a call that is a graph, as if they had been recorded one by one, where it was called."""
    ints = iter(node.ints)
    for number, call in enumerate(nested.graph.calls):
        inner = Node(call, (), (), [next(ints) for _ in range(call.ints)])
        inner.line = nested.lines.get(number, "") or getattr(node, "line", "")
        inner.stack = getattr(node, "stack", [])
        inner.scope = getattr(node, "scope", "")
        yield inner


def _device(spec: TensorSpec) -> str:
    return f"{spec.device.platform.upper()}:{spec.device.jax_device.id}"


def _shape(spec: TensorSpec) -> str:
    """`f32[2,3]{1,0}`, as XLA writes a shape and its order of dimensions, which is always torch's."""
    # what the device stores, which may have fewer bits
    narrowed = dtypes.narrowed().get(spec.dtype) if spec.device.narrows else None
    name = str(spec.dtype if narrowed is None else dtypes.to_torch(narrowed)).removeprefix("torch.")
    for torch_name, xla_name in _XLA_NAMES.items():
        if name.startswith(torch_name):
            name = name.replace(torch_name, xla_name, 1)
            break
    order = ",".join(map(str, reversed(range(len(spec.shape)))))
    return f"{name}[{','.join(map(str, spec.shape))}]" + (f"{{{order}}}" if order else "")


_XLA_NAMES = {
    "float8_": "f8",
    "bfloat": "bf",
    "float": "f",
    "uint": "u",
    "int": "s",
    "bool": "pred",
    "complex64": "c64",
    "complex128": "c128",
}


def _attributes(node: Node) -> list[str]:
    """The arguments that are no tensors; numbers that are inputs of the program with the values that they have now."""
    floats, ints = iter(node.floats), list(node.ints)
    seed = [f"seed={ints.pop()}"] if node.call.random and ints else []
    inputs = iter(ints)
    found = []
    for name, part in parts(node.call).items():
        kind = getattr(part, "kind", None)
        if part is None or isinstance(part, TensorSpec) or name == PRECISION:
            continue
        value = next(floats) if kind == "float" else next(inputs) if kind == "int" else shown(part)
        found.append(f"{name}={value}")
    return found + seed


def _location(node: Node) -> list[str]:
    stack = getattr(node, "stack", None)
    if stack:
        part = getattr(node, "scope", "")
        scope = [f"scope={part}"] if part else []
        return [*scope, f"location={' < '.join(f'{line.function}@{line}' for line in stack)}"]
    line = source_locations.parse(getattr(node, "line", ""))
    return [f"location={line.function}@{line}"] if line is not None else []


def _text(numbered: Linearized) -> str:
    rows = ["IR {"]
    items = _items(numbered)
    for number, item in enumerate(items):
        shape = item.shapes[0] if len(item.shapes) == 1 else f"({', '.join(item.shapes)})"
        operands = ", ".join(
            f"%{source}.{result}" if len(items[source].shapes) > 1 else f"%{source}" for source, result in item.operands
        )
        attributes = item.attributes + [f"ROOT={root}" for root in item.roots]
        rows.append(f"  %{number} = {shape} {item.name}({operands})" + "".join(f", {each}" for each in attributes))
    return "\n".join([*rows, "}", ""])


def _dot(numbered: Linearized) -> str:
    rows = ["digraph G {"]
    items = _items(numbered)
    for number, item in enumerate(items):
        parts = [item.name, *item.shapes, *item.attributes, *(f"ROOT={root}" for root in item.roots)]
        label = r"\n".join(part.replace("\\", r"\\").replace('"', r"\"") for part in parts)
        rows.append(f'  node{number} [label="{label}"]')
    for number, item in enumerate(items):
        several = len(item.operands) > 1
        for operand, (source, result) in enumerate(item.operands):
            label = [f"i={operand}"] * several + [f"o={result}"] * (len(items[source].shapes) > 1)
            rows.append(f"  node{source} -> node{number}" + (f' [label="{",".join(label)}"]' if label else ""))
    return "\n".join([*rows, "}", ""])


_FORMS: dict[str, Callable[[Linearized], str]] = {"text": _text, "dot": _dot, "hlo": _hlo, "stablehlo": _stablehlo}
