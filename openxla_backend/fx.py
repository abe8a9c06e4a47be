"""FX graph → `ir.Graph`: one pass over the graph's nodes, each recorded like an operator on a lazy tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from lazy_runtime import dispatch, metrics, numbering, transfer
from lazy_runtime.dispatch import Trace
from lazy_runtime.ir import Graph, Handle, Value
from lazy_runtime.spec import TensorSpec
from lazy_runtime.tensor import XLATensor, make
from lazy_runtime.xla_devices import Device

aten = torch.ops.aten


class Output(NamedTuple):
    """Where one output of the program comes from.

    Attributes:
        result: number of the executable's result, or None.
        argument: number of the argument that is handed through, or None.
        spec: how the tensor looks; None for a Python value.
        device: where the user gets it.
        value: the Python value (None, an int) of what is no tensor.
    """

    result: int | None
    argument: int | None
    spec: TensorSpec | None
    device: torch.device | None
    value: Any = None


class Program(NamedTuple):
    """A traced FX graph.

    Attributes:
        graph: what is compiled.
        leaves: for each leaf of the graph, the number of the argument that it reads, or a constant tensor.
        outputs: the graph's own outputs.
        mutations: (argument number, output) pairs: what is written back to arguments after the run.
        seeds: how many random seeds a run draws.
    """

    graph: Graph
    leaves: tuple[int | XLATensor, ...]
    outputs: tuple[Output, ...]
    mutations: tuple[tuple[int, Output], ...]
    seeds: int


def trace(gm: torch.fx.GraphModule, arguments: Sequence[Any], device: Device) -> Program:
    """Traces `gm` for a device and one set of concrete arguments.

    Args:
        arguments: one per placeholder: a `TensorSpec` for a tensor, else the value itself (the int of a SymInt).

    Raises:
        NotImplementedError: an operator without a lowering.
    """
    metrics.count("DynamoExtractCompiledGraph")
    context = Trace(device)
    with context, torch.no_grad():
        # what only the interpreter held is dead when it returns: the outputs alone decide what is computed
        recorded = _interpret(gm, arguments, device)
    position, constants = recorded.position, recorded.constants
    numbered = numbering.number(device, context.nodes, donate=False)
    results = {id(handle): number for number, handle in enumerate(numbered.live)}

    def describe(value: Any, node: Any) -> Output:
        if not isinstance(value, XLATensor):
            return Output(None, None, None, None, value)
        fake = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
        target = fake.device if isinstance(fake, torch.Tensor) else device.torch_device
        argument = position.get(id(value.handle.value))
        constant = constants.get(id(value.handle.value))
        return Output(results.get(id(value.handle)), argument, value.spec, target, constant)

    described = tuple(describe(value, node) for value, node in zip(recorded.outputs, recorded.output_nodes, strict=True))
    mutations = tuple((number, describe(value, None)) for number, value in recorded.mutated.items())
    leaves = tuple(
        position[id(value)] if id(value) in position else constants[id(value)] for value in numbered.leaves
    )
    return Program(numbered.graph, leaves, described, mutations, numbered.graph.ints)


class _Recorded(NamedTuple):
    outputs: list[Any]
    output_nodes: list[Any]
    position: dict[int, int]  # id of a placeholder's value → argument number
    constants: dict[int, XLATensor]  # id of a constant's value → the constant
    mutated: dict[int, XLATensor]  # argument number → what is written to it
    placeholders: list[Any]  # keeps the ids above from being used again


def _interpret(gm: torch.fx.GraphModule, arguments: Sequence[Any], device: Device) -> _Recorded:
    environment: dict[torch.fx.Node, Any] = {}
    recorded = _Recorded([], [], {}, {}, {}, [])
    remaining = iter(enumerate(arguments))
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            number, argument = next(remaining)
            if isinstance(argument, TensorSpec):
                argument = make(Handle(Value(None, 0)), argument)
                recorded.position[id(argument.handle.value)] = number
                recorded.placeholders.append(argument)
            environment[node] = argument
        elif node.op == "get_attr":
            attribute = _attribute(gm, node.target)
            if isinstance(attribute, torch.Tensor):
                attribute = transfer.to_device(attribute.detach().cpu(), device)
                recorded.constants[id(attribute.handle.value)] = attribute
            environment[node] = attribute
        elif node.op == "call_function":
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), environment.__getitem__)
            if node.target is aten.copy_.default and id(args[0].handle.value) in recorded.position:
                value = dispatch.dispatch(XLATensor, aten.copy.default, (), args)
                recorded.mutated[recorded.position[id(args[0].handle.value)]] = value
                environment[node] = value
            else:
                environment[node] = _call(node, args, kwargs)
        elif node.op == "output":
            (nodes,) = node.args
            recorded.output_nodes.extend(nodes)
            recorded.outputs.extend(torch.fx.map_arg(nodes, environment.__getitem__))
        else:
            raise NotImplementedError(f"FX nodes of kind {node.op} do not occur in graphs from AOTAutograd: {node}")
    return recorded


def _attribute(gm: torch.fx.GraphModule, target: str) -> Any:
    found: Any = gm
    for name in target.split("."):
        found = getattr(found, name)
    return found


def _call(node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return dispatch.dispatch(XLATensor, target, (), args, kwargs)
    if isinstance(target, torch._ops.HigherOrderOperator):
        raise NotImplementedError(
            f"{target} is not supported by backend='openxla' yet: keep it out of the compiled function "
            "(torch.compiler.disable) or run that part on the lazy device"
        )
    return target(*args, **kwargs)  # type: ignore[operator]  # getitem and arithmetic on sizes
