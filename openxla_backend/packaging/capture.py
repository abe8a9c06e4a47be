"""A module's call as one graph of operators, by `torch.export`, and what it reads beside its arguments."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.export.graph_signature import InputKind, OutputKind

from lazy_runtime.compat.dynamo import aot_autograd
from lazy_runtime.compat.torch import tree_leaves, tree_unflatten
from lazy_runtime.compat.tracing import FakeTensorMode, TracingContext, tracing

from ..dynamo import attention
from ..graph import metadata
from . import tree


class Captured(NamedTuple):
    """A call as a graph.

    Attributes:
        gm: what AOTAutograd made of it; it writes to those placeholders that the call writes to.
        examples: fake tensors, one for each placeholder.
        inputs: for each placeholder, the number of the tensor among the arguments; None for a parameter or buffer.
        state: for each placeholder that is a parameter, a buffer or a constant, its name and value.
        visible: how many of the graph's outputs are results of the call.
        aliases: see `fx.trace`.
        arguments: how the arguments are nested, by their parameters' names (`tree.describe`).
        results: how the results are.
        parameters: the names of positional parameters, in order.
    """

    gm: torch.fx.GraphModule
    examples: Sequence[torch.Tensor]
    inputs: Sequence[int | None]
    state: Mapping[int, tuple[str, torch.Tensor]]
    visible: int | None
    aliases: frozenset[int]
    arguments: dict[str, tree.Described]
    results: tree.Described
    parameters: Sequence[str]


def capture(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Captured:
    """Traces a call without gradients.

    Args:
        function: a module or a function, or what `torch.compile` made of one.

    Raises:
        NotImplementedError: it changes an argument in another way than by writing to it; sizes are symbolic.
        TypeError: an argument or a result is nothing that a package holds.
        torch.export's errors: the call depends on values of tensors, or cannot be traced.
    """
    function = _original(function)
    module = function if isinstance(function, torch.nn.Module) else _Module(function)
    parameters, given = _bound(function, args, kwargs)
    leaves: list[torch.Tensor] = []
    arguments = {name: tree.describe(value, tree.numbering(leaves), name) for name, value in given.items()}
    _refuse_repeated(leaves)
    with torch.no_grad():
        program = torch.export.export(module, args, dict(kwargs), strict=False)
    _drop_what_holds(program.graph_module.graph)
    gm, values, inputs, state = _inputs(program, leaves)
    results = _results(program, gm)
    attention.keep_whole(gm)
    return _functional(gm, values, FakeTensorMode())._replace(
        inputs=inputs,
        state=state,
        arguments=arguments,
        results=results,
        parameters=parameters,
    )


def of_graph(gm: torch.fx.GraphModule, examples: Sequence[Any], mode: Any) -> Captured:
    """A graph that Dynamo has made, whose inputs are the arguments of a call.

    Args:
        mode: the fake mode of the examples.

    Raises:
        NotImplementedError: see `capture`.
    """
    graph = torch.fx.GraphModule(gm, copy.deepcopy(gm.graph))
    _give_own(graph)
    return _functional(graph, examples, mode)


class _Module(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def _original(function: Callable[..., Any]) -> Callable[..., Any]:
    """What `torch.compile` was given."""
    for name in ("_orig_mod", "_torchdynamo_orig_callable"):
        function = getattr(function, name, function)
    return function


def _bound(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[list[str], dict[str, Any]]:
    """The names of positional parameters, and the arguments by name."""
    called = function.forward if isinstance(function, torch.nn.Module) else function
    kinds = list(inspect.signature(called).parameters.values())
    names = [each.name for each in kinds if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    for rest in (each.name for each in kinds if each.kind is each.VAR_POSITIONAL):
        names += [f"{rest}[{number}]" for number in range(len(args) - len(names))]
    if len(args) > len(names):
        raise TypeError(f"{len(args)} arguments, but the function has {len(names)} positional parameters: {names}")
    return names, {**dict(zip(names, args, strict=False)), **kwargs}


def _refuse_repeated(leaves: Sequence[torch.Tensor]) -> None:
    if len({id(each) for each in leaves}) < len(leaves):
        raise NotImplementedError("one tensor is two of the arguments: pass a copy of it, `.clone()`")


def _drop_what_holds(graph: torch.fx.Graph) -> None:
    """Removes what `torch.export` asserts of dtypes, devices and layouts: the arguments are looked at before a call."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten._assert_tensor_metadata.default):
        graph.erase_node(node)


def _inputs(
    program: torch.export.ExportedProgram, leaves: Sequence[torch.Tensor]
) -> tuple[torch.fx.GraphModule, list[torch.Tensor], list[int | None], dict[int, tuple[str, torch.Tensor]]]:
    """The graph with tensors alone as its inputs, their values, and which arguments or parameters they are."""
    gm = program.graph_module
    numbers = {id(leaf): number for number, leaf in enumerate(leaves)}  # export may take them in another order
    given = iter(each for each in tree_leaves(program.example_inputs) if isinstance(each, torch.Tensor))
    values: list[torch.Tensor] = []
    inputs: list[int | None] = []
    state: dict[int, tuple[str, torch.Tensor]] = {}
    for node, spec in zip(gm.graph.find_nodes(op="placeholder"), program.graph_signature.input_specs, strict=True):
        if not isinstance(node.meta.get("val"), torch.Tensor):  # a number: it is a constant of the program
            if node.users:
                raise NotImplementedError(f"the program takes {node.name}, which is no tensor")
            gm.graph.erase_node(node)
        elif spec.kind is InputKind.USER_INPUT:
            number = numbers[id(next(given))]
            inputs.append(number)
            values.append(leaves[number])
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            name = str(spec.target)
            source: Any = program.state_dict if name in program.state_dict else program.constants
            state[len(values)] = name, source[name].detach()
            inputs.append(None)
            values.append(source[name].detach())
        else:
            raise NotImplementedError(f"the program takes {node.name} ({spec.kind.name}), which is no tensor")
    gm.recompile()
    return gm, values, inputs, state


def _results(program: torch.export.ExportedProgram, gm: torch.fx.GraphModule) -> tree.Described:
    """How the results are nested. Afterwards the graph gives the tensors among them alone, each in its own memory."""
    unknown = {spec.kind.name for spec in program.graph_signature.output_specs} - {OutputKind.USER_OUTPUT.name}
    if unknown:
        raise NotImplementedError(f"the exported program gives {', '.join(sorted(unknown))}")
    nodes: Any = gm.graph.output_node().args[0]
    # stand-ins, since one tensor may be several of the results
    leaves = [torch.empty(0, device="meta") if isinstance(node, torch.fx.Node) else node for node in nodes]
    numbers = {id(leaf): number for number, leaf in enumerate(x for x in leaves if isinstance(x, torch.Tensor))}
    _give_own(gm)
    spec: Any = program.call_spec.out_spec
    return tree.describe(tree_unflatten(leaves, spec), lambda tensor: numbers[id(tensor)], "the result")


def _give_own(gm: torch.fx.GraphModule) -> None:
    """Has the graph give the tensors among its results alone, each in memory of its own."""
    output = gm.graph.output_node()
    nodes: Any = output.args[0]
    with gm.graph.inserting_before(output):
        kept = [
            gm.graph.call_function(torch.ops.aten.clone.default, (node,))
            for node in nodes
            if isinstance(node, torch.fx.Node)
        ]
    output.args = (tuple(kept),)
    gm.recompile()


def _functional(gm: torch.fx.GraphModule, values: Sequence[Any], mode: Any) -> Captured:
    """The graph as AOTAutograd gives it to a compiler; all its inputs are arguments."""
    found: list[Any] = []

    def take(functional: torch.fx.GraphModule, examples: Sequence[torch.Tensor]) -> Callable[..., Any]:
        found.extend((functional, examples, metadata.current()))
        return lambda *arguments: arguments

    with torch.no_grad(), tracing(TracingContext(mode)):
        aot_autograd(fw_compiler=take, inference_compiler=take, decompositions={}, keep_inference_input_mutations=True)(
            gm, list(values)
        )
    functional, examples, notes = found
    if any(not _is_fixed(each) for each in examples):
        raise NotImplementedError("the program has symbolic sizes: package it for fixed ones")
    if notes.num_mutated_inp_runtime_indices:
        raise NotImplementedError(
            "the call changes an argument, a parameter or a buffer in another way than by writing into its elements"
        )
    inputs = list(range(len(examples)))
    visible, aliases = metadata.visible(notes), metadata.aliases(notes)
    return Captured(functional, examples, inputs, {}, visible, aliases, {}, {}, ())


def _is_fixed(example: Any) -> bool:
    return isinstance(example, torch.Tensor) and all(isinstance(size, int) for size in example.shape)
