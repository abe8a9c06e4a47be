"""From an aten call on xla tensors to a node of the pending graph. `record` is what recording means; of calls that are
known, `native/recording.cpp` does it. What changes in one of them changes in the other.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

import torch

from .. import native
from ..common import errors, metrics, source_locations, special_numbers
from ..compat.torch import (
    DisableTorchDispatch,
    InferenceMode,
    OpOverload,
    is_multithreading_enabled,
    schema_of,
    set_multithreading_enabled,
    tree_leaves,
)
from ..compat.tracing import FakeTensor
from ..compilation import capacity, compiler, deferred_views
from ..execution import concatenations, execute, growing, recorders, transfer
from ..ir import dtypes, lowering_context
from ..ir.graph import Call, Handle, Node, Placeholder, Value, filled
from ..ir.spec import TensorSpec
from ..lowering import precision
from ..ops import load_all, registry
from ..ops.registry import Operator
from ..platform import xla_devices
from ..platform.xla_devices import Device
from ..tensor.xla_tensor import XLATensor, make, serving
from . import decompose, higher_order, kernel_checks, recompute

#: overload → function(overload, args, kwargs) for what is not one node: copies between devices, reads, aliases
Handler = Callable[[OpOverload, tuple, dict[str, Any]], Any]
_handlers: dict[OpOverload, Handler] = {}
#: the same for calls of operators of the table with a sparse tensor among their operands
_handlers_with_sparse: dict[OpOverload, Handler] = {}

_is_inference_mode_enabled = torch.is_inference_mode_enabled
_default_dtype = torch.get_default_dtype
_NO_KWARGS: dict[str, Any] = {}
_operators = registry.table


def handler(*names: str) -> Callable[[Handler], Handler]:
    """Registers a function that serves the named overloads by itself."""
    return _into(_handlers, names)


def handler_with_sparse(*names: str) -> Callable[[Handler], Handler]:
    """Registers a function that serves calls of the named overloads with dense and sparse operands."""
    return _into(_handlers_with_sparse, names)


def _into(handlers: dict[OpOverload, Handler], names: Sequence[str]) -> Callable[[Handler], Handler]:
    def register(function: Handler) -> Handler:
        for name in names:
            target = registry.overload(name)
            if target is not None:
                handlers[target] = function
        return function

    return register


def dispatch(cls: type, func: OpOverload, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
    """`XLATensor.__torch_dispatch__`."""
    serving.depth += 1
    try:
        return _serve(cls, func, types, args, kwargs)
    finally:
        serving.depth -= 1


def _serve(cls: type, func: OpOverload, types: Any, args: tuple, kwargs: Any) -> Any:
    if _is_inference_mode_enabled() and _is_view(func):
        # torch's kernel for ADInplaceOrView refuses an inference tensor as a view of a tensor from outside of the mode.
        # What the view is taken of does not show here: a write within the mode leaves an inference tensor inside of a
        # wrapper that is none.
        with InferenceMode(False):
            return _serve(cls, func, types, args, kwargs)
    function = _handlers.get(func)
    if function is not None:
        return function(func, args, kwargs or _NO_KWARGS)
    operator = _operators.get(func)
    if operator is not None:
        return record(operator, args, kwargs or _NO_KWARGS)
    function = _handlers[func] = decompose.resolve(func)
    return function(func, args, kwargs or _NO_KWARGS)


@functools.cache
def _is_view(func: OpOverload) -> bool:
    """Whether the overload is a view operator or the `_copy` form of one."""
    for target in (func, registry.overload(func.name().replace("_copy", "", 1))):
        if target is not None:
            aliases = [returned.alias_info for returned in schema_of(target).returns]
            if any(alias is not None and not alias.is_write for alias in aliases):
                return True
    return False


class Trace:
    """Nodes recorded aside from any device's pending graph, for a program that is compiled before it is run.

    Within `with trace:` everything that the calling thread records goes into it. Numbers are constants of such a
    program, and every factory makes its tensor on the trace's device.

    Args:
        numbers_change: numbers are inputs, as in a pending graph.
    """

    def __init__(self, device: Device, numbers_change: bool = False):
        self.device = device
        self.numbers_change = numbers_change
        self.nodes: list[Node] = []
        self.line = ""  # the user's line that what is recorded next comes from

    def __enter__(self) -> Trace:
        global _traces
        self._outer, _thread.trace = _thread.trace, self
        with _counting:
            _traces += 1
        return self

    def __exit__(self, *exception: object) -> None:
        global _traces
        with _counting:
            _traces -= 1
        _thread.trace = self._outer


class _Thread(threading.local):
    trace: Trace | None = None


_thread = _Thread()
_counting = threading.Lock()
_traces = 0  # how many threads are inside of a trace; saves the others the look at `_thread`


def current_trace() -> Trace | None:
    """The trace that the calling thread records into."""
    return _thread.trace


def record(operator: Operator, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Appends one operator to the pending graph of its device (or to the current trace) and returns its lazy results.

    Raises:
        RuntimeError, IndexError, TypeError, ...: what torch raises for these shapes, dtypes and arguments.
        NotImplementedError: an argument of a type that operators do not take.
    """
    trace = _thread.trace if _traces else None
    key: list[Any] = []
    scan = _Scan(operator.dynamic_scalars and (trace is None or trace.numbers_change))
    inputs = scan.inputs
    read = scan.read
    add = key.append
    for arg in args:
        kind = type(arg)
        if kind is XLATensor:
            handle = arg.handle
            add(arg.spec)
            inputs.append(handle.value)
            read.append(handle)
        elif arg is None:
            add(None)
        else:
            add(scan.key_of(arg))
    if kwargs:
        for name, arg in kwargs.items():
            add(name)
            add(scan.key_of(arg))
    if scan.foreign is not None:
        if scan.foreign.layout is torch.sparse_coo and operator.overload in _handlers_with_sparse:
            return _handlers_with_sparse[operator.overload](operator.overload, tuple(args), kwargs)
        return record(operator, *_adopt(operator, args, kwargs))
    if trace is not None and not inputs:
        add(trace.device)
    if operator.products:
        add(precision.level())
    meaning: Any = tuple(key)
    default = _default_dtype()
    # numbers and integers become floats of the default dtype
    known = meaning if default is torch.float32 else (default, meaning)
    call = operator.calls.get(known)
    if call is None:
        call = _new_call(operator, args, kwargs, scan, trace)
        call.meaning = operator, meaning
        call.default_dtype = default
        call.grows = trace is None and growing.look(call)
        call = operator.calls.setdefault(known, call)  # graphs tell calls by identity
        compiler.called()
    device = call.device
    recomputed = trace is None and recompute.is_running() and not execute.eager
    if recomputed and not _is_view(operator.overload):
        recompute.hold_back(inputs, call.inputs, device.pending, dispatch)
    if operator.random:
        scan.ints.append(0 if trace is not None else device.random.draw(1, kwargs.get("generator"))[0])
    node = Node(call, inputs, scan.floats, scan.ints)
    if trace is not None:
        node.line = trace.line
    elif call.located or source_locations.keep:
        keep_line(node)
    container = call.container
    if container is None:
        handle = Handle(Value(node, 0))
        node.outputs = (handle.value.owner,)
        result: Any = make(handle, call.outputs[0])  # type: ignore[arg-type]
    else:
        results = []
        owners: list[Any] = []
        for index, spec in enumerate(call.outputs):
            if spec is None:
                results.append(None)
                owners.append(None)
            else:
                handle = Handle(Value(node, index))
                owners.append(handle.value.owner)
                results.append(make(handle, spec))
        node.outputs = owners
        result = container(results)
    if trace is not None:
        trace.nodes.append(node)
        return result
    metrics.counters[operator.counter] += 1
    pending = device.pending
    if execute.eager:
        if call.view and not pending and deferred_views.defer(node):
            device.has_views = True
            return result
        execute.run_at_once(device, node)
        return result
    if not pending:
        _begin(device)
    recorders.mark(node)
    pending.append(node)
    if recomputed:
        recompute.recorded(node)
    if len(pending) == execute.pending_limit:
        execute.warn_of_length(device)
    return result


#: Called before a graph with collectives is recorded (`torch_xla/distributed/point_to_point.py`).
before_collective: Callable[[], None] | None = None


def record_graph(call: Call, inputs: Sequence[Value], ints: Sequence[int]) -> list[Handle]:
    """Appends a call that is a whole graph (`lower.nested_call`) to the pending graph of its device.

    Args:
        ints: the seeds of its random operators.

    Returns:
        the handles of its results.
    """
    device = call.device
    if call.collective and before_collective is not None:
        before_collective()
    node = Node(call, inputs, (), ints)
    if call.located or source_locations.keep:
        keep_line(node)
    handles = handles_of(node)
    if not device.pending:
        _begin(device)
    recorders.mark(node)
    device.pending.append(node)
    return handles


def handles_of(node: Node) -> list[Handle]:
    """Handles of all results of a new node, which knows them from now on."""
    handles = [Handle(Value(node, index)) for index in range(len(node.call.outputs))]
    node.outputs = [handle.value.owner for handle in handles]
    return handles


def record_in_trace(call: Call, inputs: Sequence[Value]) -> list[XLATensor]:
    """Appends a call that is no operator of the table to the calling thread's trace; gives its results."""
    trace: Any = _thread.trace
    node = Node(call, inputs, (), [0] * call.ints)
    node.line = trace.line
    handles = handles_of(node)
    trace.nodes.append(node)
    return [make(handle, spec) for handle, spec in zip(handles, call.outputs, strict=True)]  # type: ignore[arg-type]


def _record_aside(
    operator: Operator,
    values: Sequence[Value],
    specs: Sequence[TensorSpec],
    arguments: Callable[[Sequence[Any]], tuple[list[Any], dict[str, Any]]],
) -> Node:
    """See `concatenations.record_aside`."""
    owners = [value.owner for value in values]
    handles = [(owner and owner()) or Handle(value) for owner, value in zip(owners, values, strict=True)]
    with Trace(specs[0].device, numbers_change=True) as aside:
        args, kwargs = arguments(list(map(make, handles, specs)))
        record(operator, args, kwargs)
    for value, owner in zip(values, owners, strict=True):
        value.owner = owner  # not the handle that was made for a tensor of this
    return aside.nodes[-1]


concatenations.record_aside = _record_aside


def keep_line(node: Node) -> None:
    """Notes the user's line, and the stack where that is wanted."""
    node.line = errors.user_line()
    if source_locations.keep_stacks:
        node.stack = source_locations.stack()
        node.scope = source_locations.current_scope()


def _begin(device: Device) -> None:
    """Notes where and when a pending graph begins."""
    device.began = source_locations.here()
    device.began_ns = perf_counter_ns()


class _Dynamic:
    """Stands in a key for a number whose value is an input of the graph."""

    def __init__(self, kind: str):
        self.kind = kind


_DYNAMIC_FLOAT = _Dynamic("float")
_DYNAMIC_INT = _Dynamic("int")


class _Scan:
    """One pass over a call's arguments: collects what flows into the graph and gives the key of what does not."""

    __slots__ = ("dynamic", "floats", "foreign", "inputs", "ints", "read")

    def __init__(self, dynamic: bool):
        self.dynamic = dynamic
        self.inputs: list[Value] = []
        #: keeps what is read from being taken for dead by another thread's sync, until the node is on the list
        self.read: list[Handle] = []
        self.floats: list[float] = []
        self.ints: list[int] = []
        self.foreign: torch.Tensor | None = None  # a tensor that is not on an xla device

    def key_of(self, arg: Any) -> Any:
        """A hashable that is equal for equal meanings only."""
        kind = type(arg)
        if kind is XLATensor:
            handle = arg.handle
            self.inputs.append(handle.value)
            self.read.append(handle)
            return arg.spec
        if kind is int:
            if self.dynamic and not special_numbers.LOWEST <= arg <= special_numbers.HIGHEST:
                self.ints.append(arg)
                return _DYNAMIC_INT
            return arg
        if kind is float:
            if self.dynamic and arg not in special_numbers.FLOATS:
                self.floats.append(arg)
                return _DYNAMIC_FLOAT
            return arg.hex()  # tells -0.0 from 0.0 and 1.0 from 1, and finds nan again
        if kind is list or kind is tuple:
            if arg and type(arg[0]) is int:  # sizes, never inputs of the graph
                return tuple(arg)
            dynamic, self.dynamic = self.dynamic, False
            items = tuple([self.key_of(item) for item in arg])
            self.dynamic = dynamic
            return items
        if kind is bool or kind is complex:
            return (kind, arg)
        if isinstance(arg, torch.Tensor):
            self.foreign = arg
            return None
        if isinstance(arg, list | tuple):  # torch.Size, FX's immutable lists
            return self.key_of(list(arg))
        return None if kind is torch.Generator else arg  # a generator only gives the seed


def _new_call(
    operator: Operator, args: Sequence[Any], kwargs: dict[str, Any], scan: _Scan, trace: Trace | None
) -> Call:
    """Infers shapes on meta tensors and makes the call that stands for this operator on these specs."""
    specs: list[TensorSpec] = []
    numbers = {"float": 0, "int": 0}

    if not dtypes.QUANTIZED.isdisjoint(arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.dtype)):
        raise NotImplementedError(errors.no_quantized(operator.name))

    def template_of(arg: Any, dynamic: bool = scan.dynamic) -> Any:
        if isinstance(arg, XLATensor):
            specs.append(arg.spec)
            return Placeholder("tensor", len(specs) - 1)
        if isinstance(arg, list | tuple):
            return [template_of(item, False) for item in arg]
        key = _Scan(dynamic).key_of(arg)
        if isinstance(key, _Dynamic):
            numbers[key.kind] += 1
            return Placeholder(key.kind, numbers[key.kind] - 1)
        return arg

    args, kwargs = _positional(operator.overload, args, kwargs)
    template_args = [template_of(arg) for arg in args]
    template_kwargs = {name: template_of(arg) for name, arg in kwargs.items()}
    device = _common_device(specs) if specs else _device_argument(kwargs, trace)
    outputs, container = infer(operator, device, args, kwargs)
    ints = len(scan.ints) + operator.random
    level = precision.level() if operator.products else "highest"

    def arguments(
        arrays: Sequence[Any], floats: Sequence[Any], int_inputs: Sequence[Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        given = arrays, floats, int_inputs
        options = {name: filled(arg, *given) for name, arg in template_kwargs.items()}
        return [filled(arg, *given) for arg in template_args], options

    def evaluate(arrays: Sequence[Any], floats: Sequence[Any], int_inputs: Sequence[Any]) -> Sequence[Any]:
        filled, options = arguments(arrays, floats, int_inputs)
        if operator.random:
            options["seed"] = int_inputs[-1]
        with lowering_context.changed(precision=level):
            results = operator.lowering(call, filled, options)
        return [results] if container is None else list(results)

    call = Call(
        operator.name,
        device,
        evaluate,
        tuple(specs),
        outputs,
        container,
        len(scan.floats),
        ints,
        operator.random,
        operator.fallible,
        operator.collective,
    )
    call.view = deferred_views.is_view(operator.name)
    call.arguments = arguments
    return call


def _positional(
    overload: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Puts arguments that were given by the schema's names in their places: a lowering has names of its own."""
    if not kwargs:
        return args, kwargs
    rest = dict(kwargs)
    found = list(args)
    named = [argument for argument in schema_of(overload).arguments[len(args) :] if not argument.kwarg_only]
    last = max((place for place, argument in enumerate(named) if argument.name in rest), default=-1)
    for argument in named[: last + 1]:
        found.append(rest.pop(argument.name, argument.default_value))
    return found, rest


def infer(
    operator: Operator, device: Device, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[tuple[TensorSpec | None, ...], Callable[[list[Any]], Any] | None]:
    """Runs the operator on meta tensors: torch itself says what comes out, or raises its own error.

    Returns:
        The specs of the outputs (None for an undefined tensor) and the type of their container (None for one tensor).
    """
    try:
        result = _run_on(operator.infer, args, kwargs, TensorSpec.meta, "meta")
    except NotImplementedError:
        raise
    except Exception:
        # The C++ and Python meta kernels word some errors in their own way; the CPU kernel says what users know. Its
        # operands are one element each, expanded.
        _run_on(operator.infer, args, kwargs, TensorSpec.expanded, "cpu")
        raise
    if result is None:
        return (), _nothing
    results = (result,) if isinstance(result, torch.Tensor) else result
    for item in results:
        if item is not None:
            dtypes.check_supported(item.dtype, device.platform)
    outputs = tuple(None if item is None else TensorSpec.like(device, item) for item in results)
    capacity.refuse_tensors(operator.name, device, outputs)
    asked = getattr(operator.infer, "asks_kernel", False) or _is_view(operator.overload)
    if not asked and registry.table.get(operator.overload) is operator:
        _check_kernel(operator.overload, args, kwargs, [spec for spec in outputs if spec is not None])
    return outputs, None if results is not result else list if isinstance(result, list) else tuple


def _check_kernel(func: Any, args: Any, kwargs: Any, outputs: Sequence[TensorSpec]) -> None:
    """Raises what the CPU kernel refuses and the meta kernel does not."""
    operands = [leaf.spec for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, XLATensor)]
    function = functools.partial(kernel_checks.run, func)
    kernel_checks.check(func, lambda stand_in: _run_on(function, args, kwargs, stand_in, "cpu"), [*operands, *outputs])


_decomposed: set[tuple] = set()

#: How many calls of decomposed operators are remembered. A program of new sizes at each step would add some for ever.
_MOST_DECOMPOSED = 1 << 14


def _check_decomposed(func: OpOverload, args: tuple, kwargs: dict[str, Any]) -> None:
    """The same of a call that torch's decomposition serves; once for each such call."""
    scan = _Scan(dynamic=True)  # numbers that change from step to step are not told apart
    try:
        key = (func, *map(scan.key_of, args), *((name, scan.key_of(arg)) for name, arg in kwargs.items()))
        if key in _decomposed:
            return
    except TypeError:  # an argument that has no key
        return
    if scan.inputs and scan.foreign is None:
        _check_kernel(func, args, kwargs, ())
    if len(_decomposed) >= _MOST_DECOMPOSED:
        _decomposed.clear()  # the next call of each is checked again
    _decomposed.add(key)


decompose.check_call = _check_decomposed


def _nothing(results: list[Any]) -> None:
    """The container of an operator that returns nothing."""


def _run_on(
    overload: Any, args: Sequence[Any], kwargs: dict[str, Any], stand_in: Callable[[TensorSpec], torch.Tensor], on: str
) -> Any:
    def convert(arg: Any) -> Any:
        if isinstance(arg, XLATensor):
            return stand_in(arg.spec)
        if isinstance(arg, torch.device):
            return torch.device(on)
        if isinstance(arg, torch.Generator):  # which keeps its numbers, and may be one of xla's
            return torch.Generator("cpu") if on == "cpu" else None
        if isinstance(arg, list | tuple):
            return [convert(item) for item in arg]
        return arg

    options = {name: convert(arg) for name, arg in kwargs.items()}
    if "device" in options:
        options["device"] = torch.device(on)
    with DisableTorchDispatch():
        return overload(*map(convert, args), **options)


def _common_device(specs: Sequence[TensorSpec]) -> Device:
    first = specs[0].device
    for spec in specs:
        if spec.device is not first:
            raise RuntimeError(errors.device_mismatch(first.torch_device, spec.torch_device))
    return first


def _device_argument(kwargs: dict[str, Any], trace: Trace | None) -> Device:
    if trace is not None:
        return trace.device
    return xla_devices.get(kwargs.get("device"))


def _adopt(operator: Operator, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Moves CPU tensors among the arguments where torch does so for any device: 0-d tensors, indices, and lengths.

    Raises:
        RuntimeError: torch's own, for any other mixture of devices.
        AssertionError: torch's own, for a fake tensor.
        NotImplementedError: a tensor is sparse.
    """
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    device = next(leaf.spec.device for leaf in tensors if isinstance(leaf, XLATensor))

    def move(arg: Any, name: str) -> Any:
        if isinstance(arg, list | tuple):
            return [move(item, name) for item in arg]
        if not isinstance(arg, torch.Tensor) or isinstance(arg, XLATensor):
            return arg
        if isinstance(arg, FakeTensor):
            raise AssertionError(errors.fake_beside_real(operator.overload))
        if arg.device.type == "cpu" and (arg.dim() == 0 or name in operator.host_inputs):
            return transfer.to_device(arg, device)
        decompose.check_devices(operator.overload, tensors, {})
        raise RuntimeError(errors.device_mismatch(device.torch_device, arg.device))

    names = [argument.name for argument in schema_of(operator.overload).arguments]
    names += [""] * (len(args) - len(names))  # of a part of the operator (`data_dependent.program`)
    moved = [move(arg, name) for arg, name in zip(args, names, strict=False)]
    return moved, {name: move(arg, name) for name, arg in kwargs.items()}


def _dispatch_after_cpu_backward(cls: type, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
    """`dispatch` for a process whose first backward came before xla's first use: autograd has no worker for the device
    (an internal assertion fails), so every thread that works with xla runs its backward passes itself. One that starts
    with `y.backward(g)` still meets the assertion: autograd asks for its worker before any operator is dispatched.
    """
    if is_multithreading_enabled():  # asked each time: the end of an inference mode brings the old state back
        set_multithreading_enabled(False)
    return dispatch(cls, func, types, args, kwargs)


def install(backward_in_caller: bool) -> None:
    """Loads the operators and sets `XLATensor.__torch_dispatch__`.

    Args:
        backward_in_caller: autograd has no worker threads for xla.
    """
    load_all()
    decompose.register()
    higher_order.register()
    chosen: Any = classmethod(_dispatch_after_cpu_backward)
    if not backward_in_caller:
        try:
            chosen = native.recording().make_dispatch()
        except native.NativeError:  # built without Python's headers
            chosen = classmethod(dispatch)
    XLATensor.__torch_dispatch__ = chosen  # type: ignore[method-assign]
