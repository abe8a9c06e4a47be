"""FX graph → `ir.Graph`: one pass over the graph's nodes, each recorded like an operator on a lazy tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from lazy_runtime.common import errors
from lazy_runtime.compat.torch import HigherOrderOperator, OpOverload
from lazy_runtime.compat.torch import is_functional_tensor as _is_functional
from lazy_runtime.compat.tracing import with_effects
from lazy_runtime.compilation import linearization
from lazy_runtime.execution import transfer
from lazy_runtime.ir.graph import Graph, Handle, Value
from lazy_runtime.ir.spec import TensorSpec
from lazy_runtime.platform.xla_devices import Device
from lazy_runtime.recording import dispatch
from lazy_runtime.recording.dispatch import Trace
from lazy_runtime.tensor.xla_tensor import XLATensor, make, unwrap

from .errors import located, user_line
from .output_sources import WRONG_STRIDES, OutputSources, Recorded, root_of, shared_roots, viewed
from .outputs import Output, TensorOutput, ViewCall, result_of
from .partial_writes import PartialWrite, written_part
from .sizes import Sizes

aten = torch.ops.aten

#: How a quantized tensor comes into being; a program has none that it could have come from.
_QUANTIZING = frozenset(
    getattr(packet, overload)
    for packet in (aten.quantize_per_tensor, aten.quantize_per_tensor_dynamic, aten.quantize_per_channel)
    for overload in packet.overloads()
)

#: In the `meta` of a placeholder: the argument's buffer will hold dimension 1 last, whatever its strides say.
CHANNELS_LAST = "openxla_channels_last"


class Program(NamedTuple):
    """A traced FX graph.

    Attributes:
        graph: what is compiled.
        leaves: for each leaf of the graph, the number of the argument that it reads, or a constant tensor.
        outputs: the graph's own outputs.
        mutations: (argument number, output) pairs: what is written back to arguments after the run.
        seeds: how many random seeds a run draws.
        lines: call number → the user's line, for what may fail when it runs.
        recorded: for each call, the user's line.
        exchanges: (argument number, output) pairs: arguments that become an alias of something else (`x.data = y`).
        partial_writes: what is written to parts of arguments after the run; none where the device's own buffers are
            the arguments.
    """

    graph: Graph
    leaves: tuple[int | XLATensor, ...]
    outputs: tuple[Output, ...]
    mutations: tuple[tuple[int, TensorOutput], ...]
    seeds: int
    lines: dict[int, str]
    recorded: tuple[str, ...]
    exchanges: tuple[tuple[int, Output], ...] = ()
    partial_writes: tuple[PartialWrite, ...] = ()

    @property
    def writes_arguments(self) -> bool:
        """Whether a run changes arguments, or what they are an alias of."""
        return bool(self.mutations or self.exchanges or self.partial_writes)

    def saved(self, visible: int | None) -> set[int]:
        """Numbers of the results that the user does not see, directly or through an argument."""
        seen = [*self.outputs[:visible], *(output for _, output in (*self.mutations, *self.exchanges))]
        return {number for output in self.outputs if (number := result_of(output)) is not None} - {
            result_of(output) for output in seen
        }

    def known_lines(self) -> dict[int, str]:
        """Call number → the user's line, for all calls that have one."""
        return {**{number: line for number, line in enumerate(self.recorded) if line}, **self.lines}


def trace(
    gm: torch.fx.GraphModule,
    arguments: Sequence[Any],
    device: Device,
    visible: int | None = None,
    aliases: frozenset[int] = frozenset(),
) -> Program:
    """Traces `gm` for a device and one set of concrete arguments.

    Args:
        arguments: one per placeholder: a tensor (of which only sizes, dtype and layout are read), or the int of a
            SymInt.
        visible: how many of the outputs the user sees: these alias each other as in eager torch, and have its strides.
            What a forward graph saves for the backward one only needs its value.
        aliases: numbers of the outputs that must share the memory of an argument that they are a view of. What
            AOTAutograd knows to be one it makes itself, from the argument.

    Raises:
        NotImplementedError: an operator without a lowering, with the user's line.
    """
    sizes = Sizes(gm, arguments)
    placeholders = gm.graph.find_nodes(op="placeholder")
    channels_last = {  # before the trace, which would record what unwrapping an argument makes pending
        number
        for number, (node, argument) in enumerate(zip(placeholders, arguments, strict=True))
        if isinstance(argument, torch.Tensor) and (node.meta.get(CHANNELS_LAST) or in_channels_last(argument))
    }
    context = Trace(device)
    with context, torch.no_grad():
        # what only the interpreter held is dead when it returns: the outputs alone decide what is computed
        recorded = _interpret(gm, arguments, channels_last, context, sizes, visible)
    numbered = linearization.linearize(device, context.nodes, donate=False)
    outputs = OutputSources(recorded, device, numbered.live, sizes)
    mutations = tuple((number, outputs.written(value, node)) for number, (value, node) in recorded.mutated.items())
    exchanges = tuple(
        (number, outputs.describe(value, node, True, alias=True))
        for number, (value, node) in recorded.exchanged.items()
    )
    parts = tuple(
        PartialWrite(number, dim, outputs.source(index), outputs.source(part))
        for number, (dim, index, part) in recorded.partly.items()
    )
    described = tuple(
        outputs.describe(value, node, visible is None or index < visible, index in aliases)
        for index, (value, node) in enumerate(zip(recorded.outputs, recorded.output_nodes, strict=True))
    )
    leaves = tuple(
        recorded.position[id(value)] if id(value) in recorded.position else make(Handle(value), spec)  # a constant
        for value, spec in zip(numbered.leaves, numbered.graph.leaves, strict=True)
    )
    lines = {number: node.line for number, node in enumerate(numbered.nodes) if node.call.located}
    recorded_at = tuple(node.line for node in numbered.nodes)
    return Program(
        numbered.graph, leaves, described, mutations, numbered.graph.ints, lines, recorded_at, exchanges, parts
    )


def _interpret(
    gm: torch.fx.GraphModule,
    arguments: Sequence[Any],
    channels_last: set[int],
    trace: Trace,
    sizes: Sizes,
    visible: int | None,
) -> Recorded:
    device = trace.device
    environment: dict[torch.fx.Node, Any] = {}
    recorded = Recorded([], [], {}, {}, {}, {}, {}, {}, {})
    remaining = iter(enumerate(arguments))
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            number, argument = next(remaining)
            if isinstance(argument, torch.Tensor):
                # no storage offset: Dynamo does not guard it, and no value depends on it
                spec = TensorSpec.of(device, argument.dtype, tuple(argument.shape), _strides(node, sizes, argument))
                argument = make(Handle(Value(None, 0)), spec)
                argument.handle.value.channels_last = number in channels_last
                recorded.position[id(argument.handle.value)] = number
                recorded.arguments[node] = argument
            environment[node] = argument
        elif node.op == "get_attr":
            attribute = _attribute(gm, node.target)
            if isinstance(attribute, torch.Tensor):
                attribute = transfer.to_device(attribute.detach().cpu(), device)
            environment[node] = attribute
        elif node.op == "call_function":
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), environment.__getitem__)
            if viewed(node) is not None:
                recorded.views[node] = ViewCall(node.target, args[1:], kwargs)
            if node.target is aten.as_strided.default:
                args, kwargs = _of_whole_memory(_whole(node.args[0], environment), *args, **kwargs), {}
            trace.line = user_line(node)
            with located(node):
                if node.target in _QUANTIZING:
                    raise NotImplementedError(errors.no_quantized_here(node.target.name()))
                if node.target is aten.copy_.default and id(args[0].handle.value) in recorded.position:
                    part = written_part(node) if device.torch_device.type != "xla" else None
                    if part is not None:
                        dim, index, source = part
                        number = recorded.position[id(args[0].handle.value)]
                        recorded.partly[number] = dim, environment[index], environment[source]
                        continue
                    value = dispatch.dispatch(XLATensor, aten.copy.default, (), args)
                    recorded.mutated[recorded.position[id(args[0].handle.value)]] = value, node.args[1]
                elif node.target is aten.set_.source_Tensor and id(args[0].handle.value) in recorded.position:
                    value = args[1]
                    recorded.exchanged[recorded.position[id(args[0].handle.value)]] = value, node.args[1]
                else:
                    value = _with_traced_strides(_call(node, args, kwargs), node, sizes)
            environment[node] = value
        elif node.op == "output":
            (nodes,) = node.args
            nodes = [nodes] if isinstance(nodes, torch.fx.Node) else nodes  # the condition of a while_loop
            recorded.output_nodes.extend(nodes)
            recorded.outputs.extend(torch.fx.map_arg(nodes, environment.__getitem__))
            seen = [*nodes[:visible], *(node for _, node in recorded.exchanged.values())]
            recorded.bases.update((root, environment[root]) for root in shared_roots(seen))
        else:
            raise NotImplementedError(f"FX nodes of kind {node.op} do not occur in graphs from AOTAutograd: {node}")
    return recorded


def in_channels_last(argument: torch.Tensor) -> bool:
    """Whether the memory of an argument holds dimension 1 last: a buffer on the device that does (`Value`), or a plain
    tensor with such strides.
    """
    if argument.device.type == "xla":
        return _is_functional(argument) and unwrap(argument).handle.value.channels_last
    if argument.dim() != 4 or argument.is_contiguous():
        return False
    return argument.is_contiguous(memory_format=torch.channels_last)


def _whole(node: torch.fx.Node, environment: dict[torch.fx.Node, Any]) -> XLATensor:
    """What `as_strided` sees: all of the memory that a node is a view of, beyond what the view shows."""
    root = environment[root_of(node)]
    seen = environment[node]
    return root if isinstance(root, XLATensor) and root.spec.dtype == seen.spec.dtype else seen


def _of_whole_memory(
    whole: XLATensor, seen: XLATensor, size: Any, stride: Any, storage_offset: Any = None
) -> tuple[Any, ...]:
    """The arguments of an `as_strided` of `seen` as they are for its whole memory."""
    return whole, size, stride, seen.spec.offset if storage_offset is None else storage_offset


def _with_traced_strides(value: Any, node: torch.fx.Node, sizes: Sizes) -> Any:
    """A result with the strides that the graph was made for, on which its views rely. Those that the operator's meta
    kernel gives differ: of a convolution of CPU tensors that hold dimension 1 last, for example.
    """
    if not isinstance(value, XLATensor) or node.target in WRONG_STRIDES:
        return value
    spec, stride = value.spec, _strides(node, sizes, value)
    if stride == spec.stride:
        return value
    return make(value.handle, TensorSpec.of(spec.device, spec.dtype, spec.shape, stride, spec.offset))


def _strides(node: torch.fx.Node, sizes: Sizes, argument: torch.Tensor) -> tuple[int, ...]:
    """The strides that the graph was made for; those of a saved activation may differ (see `trace`)."""
    fake = node.meta.get("val")
    strides = sizes.ints(fake.stride()) if isinstance(fake, torch.Tensor) else None
    return argument.stride() if strides is None else strides


def _attribute(gm: torch.fx.GraphModule, target: str) -> Any:
    found: Any = gm
    for name in target.split("."):
        found = getattr(found, name)
    return found


#: name of a higher-order operator → function of its arguments, graphs and traced tensors (`control_flow.py`)
_higher_order: dict[str, Callable[..., Any]] = {}


def higher_order(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers what records a higher-order operator of torch's."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _higher_order[name] = function
        return function

    return register


def _call(node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
    target = node.target
    if isinstance(target, OpOverload):
        if target is aten._local_scalar_dense.default:
            raise NotImplementedError(
                "a number read from a tensor inside of one graph cannot be used on by backend='openxla': leave "
                "torch._dynamo.config.capture_scalar_outputs off (the default), so that the graph breaks there"
            )
        if target is torch.ops.prims.convert_element_type.default:  # of a Python number that became an input
            target, args, kwargs = aten._to_copy.default, args[:1], {"dtype": args[1]}
        if target is aten._to_copy.default and not isinstance(args[0], torch.Tensor):  # vmap's, of a constant number
            target, args = aten.full.default, ([], args[0])
        return dispatch.dispatch(XLATensor, target, (), args, kwargs)
    if target is with_effects:  # a token keeps operators that may raise in order: so does our graph, without one
        _, effectful, *rest = args
        results = dispatch.dispatch(XLATensor, effectful, (), tuple(rest), kwargs)
        return (None, *results) if isinstance(results, tuple) else (None, results)
    if isinstance(target, HigherOrderOperator):
        known = _higher_order.get(target.name())
        if known is not None:
            return known(*args, **kwargs)
        raise NotImplementedError(
            f"the higher-order operator {target} is not supported by backend='openxla' yet: keep it out of the "
            "compiled function (torch.compiler.disable), or run that part on the lazy device"
        )
    return target(*args, **kwargs)  # type: ignore[operator]  # getitem and arithmetic on sizes
