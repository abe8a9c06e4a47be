"""FX graphs as programs that are recorded once: what PyTorch/XLA's backend of Dynamo is made of.

`torch.compile(backend="openxla")` does not go this way. A graph is called with tensors of its own, and what that
records is kept as a program by its hash; later calls run the program. A graph that reads a value, or gives a CPU
tensor, is called as it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ...common import metrics as store
from ...execution import execute
from ...tensor import xla_tensor
from .. import _XLAC, experimental, torch_xla
from ..debug import metrics
from ..utils.buffer_donor_context import alias_with_buffer_donor_config
from .returned import Deduper, NoneRemover, SpecialReturnHandler

__all__ = [
    "Deduper",
    "GraphInputMatcher",
    "InputCollector",
    "NoneRemover",
    "SpecialReturnHandler",
    "UnsupportedNodesCollector",
    "XLAConstructorMoverPass",
    "alias_with_buffer_donor_config",
    "extract_compiled_graph",
    "extract_compiled_graph_helper",
    "extract_graph_helper",
    "extract_internal",
    "get_fallback_ops",
    "is_xla_tensor",
    "partition_fx_graph_for_cpu_fallback",
]

#: Whether the graphs that are recorded are printed.
dynamo_debug = os.environ.get("XLA_DYNAMO_DEBUG") == "1"
#: Whether it is printed which of their operators have no lowering; `dynamo_debug` prints that too.
ptxla_debug = os.environ.get("PT_XLA_DEBUG") == "1"


def is_xla_tensor(tensor: torch.Tensor) -> bool:
    """Whether a tensor is on an xla device."""
    return tensor.device.type == "xla"


def get_fallback_ops() -> list[str]:
    """See `debug.metrics.executed_fallback_ops`."""
    return metrics.executed_fallback_ops()


def _fallback_calls() -> dict[str, int | None]:
    """How often each operator without a lowering has been called."""
    return {name: metrics.counter_value(name) for name in get_fallback_ops()}


class GraphInputMatcher:
    """Gives a program its inputs: arguments of the call, and tensors that it was recorded with, as weights are.

    Args:
        tensor_id_to_arg_idx: number of a tensor (`_XLAC._xla_get_tensor_id`) → which argument it is.
        graph_input_tensor_ids: for each input of the program, the number of its tensor.
        graph_input_xla_values: for each input of the program, a tensor with its value.
        xla_args_tensor_id: numbers of the tensors that are arguments.

    Attributes:
        graph_input_xla_values: those that are no arguments; None for the others, which come with each call.
    """

    def __init__(
        self,
        tensor_id_to_arg_idx: Mapping[int, int],
        graph_input_tensor_ids: Sequence[int],
        graph_input_xla_values: Sequence[torch.Tensor],
        xla_args_tensor_id: set[int] | Sequence[int],
    ):
        given = set(xla_args_tensor_id)
        pairs = list(zip(graph_input_tensor_ids, graph_input_xla_values, strict=True))
        self.graph_input_xla_values = [None if number in given else value for number, value in pairs]
        self.arg_idxs = [tensor_id_to_arg_idx.get(number) for number, _ in pairs]

    def __call__(self, args: Sequence[torch.Tensor]) -> list[Any]:
        """The inputs for a call with these tensors."""
        return [
            value if place is None else args[place]
            for value, place in zip(self.graph_input_xla_values, self.arg_idxs, strict=True)
        ]


class _Recorded:
    """A graph that was recorded with some arguments, and runs with others like them."""

    def __init__(self, model: torch.fx.GraphModule, args: Sequence[Any]):
        given = [each for each in args if isinstance(each, torch.Tensor)]
        if not all(map(is_xla_tensor, given)):
            raise ValueError("dynamo_bridge: move all tensor arguments to the xla device")
        #: parameters and buffers: each call sees the values that they have then
        self._state = [each for each in (*model.parameters(), *model.buffers()) if is_xla_tensor(each)]
        before = [each.clone() for each in model.buffers() if is_xla_tensor(each)]
        first = len(self._state) - len(before)
        # tensors of the graph's own: it may write to them
        own = iter([each.detach().clone() for each in given])
        filled = [next(own) if isinstance(each, torch.Tensor) else each for each in args]
        tensors = [each for each in filled if isinstance(each, torch.Tensor)]
        known = [*tensors, *self._state]
        places = {_XLAC._xla_get_tensor_id(each): place for place, each in enumerate(known)}
        # a write would let go of it, and of its number
        held = [xla_tensor.unwrap(each.detach()).handle for each in known]
        torch_xla.sync(reset_scope=False)
        results = _called(model, filled)
        self._is_single = not isinstance(results, list | tuple)
        outputs = [results] if self._is_single else list(results)
        self._nones = NoneRemover()
        outputs = self._nones.remove_nones(outputs)
        if not all(is_xla_tensor(each) for each in outputs if isinstance(each, torch.Tensor)):
            raise _NoProgramError
        constants = [(place, each) for place, each in enumerate(outputs) if not isinstance(each, torch.Tensor)]
        written = _XLAC._check_tensor_need_materialization(tensors)
        changed = _XLAC._check_tensor_need_materialization(self._state)
        self._written = [place for place, is_written in enumerate(written) if is_written]
        self._changed = [place for place, is_changed in enumerate(changed) if is_changed]
        updates = [tensors[place] for place in self._written] + [self._state[place] for place in self._changed]
        wanted = updates + [each for each in outputs if isinstance(each, torch.Tensor)]
        shifted = [(place + len(updates), each) for place, each in constants]
        self._handler = SpecialReturnHandler(tensors, wanted, written, shifted)
        self._hash: bytes | None = None
        pending = [
            each
            for each, is_open in zip(wanted, _XLAC._check_tensor_need_materialization(wanted), strict=True)
            if is_open
        ]
        if pending:
            self._hash = _XLAC._get_graph_hash(pending)
            numbers, values = _XLAC._get_tensors_xla_device_data_node(pending)
            self._matcher = GraphInputMatcher(places, numbers, values, set(places))
            _XLAC._xla_warm_up_cache(pending)
        del held
        for place in self._changed:
            self._state[place].copy_(before[place - first])

    def __call__(self, args: Sequence[Any]) -> Any:
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        if execute.takes_pending_inputs:
            pending = [
                each
                for each, is_open in zip(tensors, _XLAC._check_tensor_need_materialization(tensors), strict=True)
                if is_open
            ]
            if pending:
                store.count("DynamoSyncInputExecuteTime")
                _XLAC._xla_sync_multi(pending, wait=False)
        elif any(_XLAC._check_tensor_need_materialization(tensors)):
            raise RuntimeError(
                "dynamo_bridge: input data to dynamo graph can not be a pending ir: call torch_xla.sync()"
            )
        made = (
            [] if self._hash is None else _XLAC._run_cached_graph(self._hash, self._matcher([*tensors, *self._state]))
        )
        results = self._handler.addDumbReturn(tensors, made)
        count = len(self._written) + len(self._changed)
        targets = [tensors[place] for place in self._written] + [self._state[place] for place in self._changed]
        with torch.no_grad():
            for target, value in zip(targets, results[:count], strict=True):
                target.copy_(value)
        outputs = self._nones.add_nones(results[count:])
        return outputs[0] if self._is_single else tuple(outputs)


class _NoProgramError(Exception):
    """A graph reads a value, or gives tensors that are not on xla."""


def _kind(args: Sequence[Any]) -> tuple[Any, ...]:
    """What is to be equal for two calls of one program."""
    return tuple(
        (tuple(each.shape), each.dtype, str(each.device)) if isinstance(each, torch.Tensor) else each for each in args
    )


def _called(model: torch.fx.GraphModule, args: Sequence[Any]) -> Any:
    """What a graph gives, if it does so without a read."""
    before = _XLAC._get_allow_execution()
    _XLAC._set_allow_execution(False)
    try:
        return model(*args)
    except execute.NotAllowedError:
        raise _NoProgramError from None
    finally:
        _XLAC._set_allow_execution(before)


def extract_graph_helper(
    xla_model: torch.fx.GraphModule, sym_constants_to_graph_vars: dict[tuple[Any, ...], Any]
) -> Callable[[Sequence[Any]], Any]:
    """Records a graph with the arguments `xla_model.xla_args`.

    Args:
        sym_constants_to_graph_vars: what was recorded, by the kind of the arguments; is added to.

    Returns:
        arguments → results.
    """
    args = list(xla_model.xla_args)  # type: ignore[arg-type]
    if dynamo_debug:
        print(f"dynamo_bridge records:\n{xla_model.code}")
    before = _fallback_calls()
    try:
        with torch.no_grad(), experimental.eager_mode_context(False):
            found: Callable[[Sequence[Any]], Any] = _Recorded(xla_model, args)
    except _NoProgramError:
        found = lambda given: xla_model(*given)  # noqa: E731
    called = [name for name, count in _fallback_calls().items() if count != before.get(name)]
    if called and (dynamo_debug or ptxla_debug):
        print(f"dynamo_bridge: torch's kernels are called for {', '.join(called)}")
    sym_constants_to_graph_vars[_kind(args)] = found
    return found


def extract_internal(xla_model: torch.fx.GraphModule) -> Callable[..., Any]:
    """The graph as a program for the arguments `xla_model.xla_args`, and others that it is called with."""
    known: dict[tuple[Any, ...], Any] = {}
    extract_graph_helper(xla_model, known)

    def optimized_mod(*args: Any) -> Any:
        found = known.get(_kind(args))
        if found is None:
            xla_model.xla_args = args  # type: ignore[assignment]
            found = extract_graph_helper(xla_model, known)
        return found(args)

    return optimized_mod


def extract_compiled_graph(xla_model: torch.fx.GraphModule, xla_args: Sequence[Any]) -> Callable[..., Any]:
    """A graph as a program.

    Args:
        xla_model: of operators of any level; its parameters and buffers are on xla.
        xla_args: its arguments, xla tensors and numbers.

    Returns:
        a function that takes such arguments, and writes to them what the graph does. No gradient goes through it.
    """
    store.count("DynamoExtractCompiledGraph")
    return extract_compiled_graph_helper(xla_model, xla_args)


def extract_compiled_graph_helper(xla_model: torch.fx.GraphModule, xla_args: Sequence[Any]) -> Callable[..., Any]:
    """`extract_compiled_graph` without its counter."""
    XLAConstructorMoverPass()(xla_model.graph)
    xla_model.recompile()
    tensors = [each for each in xla_args if isinstance(each, torch.Tensor)]
    return partition_fx_graph_for_cpu_fallback(xla_model, xla_args, list(xla_args), tensors)


def partition_fx_graph_for_cpu_fallback(
    xla_model: torch.fx.GraphModule,
    xla_args: Sequence[Any],
    all_xla_args: Sequence[Any],
    all_xla_args_tensor_only: Sequence[torch.Tensor],
) -> Callable[..., Any]:
    """The graph as one program: an operator without a lowering calls torch's kernel within it, so nothing is taken
    apart.
    """
    xla_model.xla_args = tuple(xla_args)  # type: ignore[assignment]
    return extract_internal(xla_model)


class UnsupportedNodesCollector(torch.fx.Interpreter):
    """Runs a graph, and collects the nodes that called an operator on the CPU, or have tensors that are not on xla.

    Args:
        module: the graph.
    """

    def __init__(self, module: torch.fx.GraphModule):
        super().__init__(module)
        self._found: list[torch.fx.Node] = []

    def run_node(self, n: torch.fx.Node) -> Any:
        """See torch."""
        before = _fallback_calls()
        result = super().run_node(n)
        called = _fallback_calls() != before
        operands = self.fetch_args_kwargs_from_env(n)
        if called or not (_all_on_xla(result) and _all_on_xla(operands)):
            self._found.append(n)
        return result

    def get_unsupported_nodes(self) -> list[torch.fx.Node]:
        """The nodes that were found."""
        return self._found


def _all_on_xla(nest: Any) -> bool:
    if isinstance(nest, torch.Tensor):
        return is_xla_tensor(nest)
    if isinstance(nest, dict):
        return all(map(_all_on_xla, nest.values()))
    return all(map(_all_on_xla, nest)) if isinstance(nest, list | tuple) else True


class InputCollector(torch.fx.Interpreter):
    """Runs a graph, and gives each submodule whose name has `fused_` the arguments that it got, as `xla_args`."""

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """See torch."""
        if "fused_" in str(target):
            self.fetch_attr(target).xla_args = args
        return super().call_module(target, args, kwargs)


class XLAConstructorMoverPass:
    """Makes tensors of a graph on xla at once that are made on the CPU to be copied there, and for nothing else."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Changes a graph."""
        for node in list(graph.nodes):
            device = node.kwargs.get("device")
            if node.op != "call_function" or node.all_input_nodes or _type(device) != "cpu" or not node.users:
                continue
            targets = {self._target(user) for user in node.users}
            if len(targets) == 1 and None not in targets and all(map(self.allow_cpu_device, node.users)):
                node.kwargs = {**node.kwargs, "device": torch.device(targets.pop() or "xla")}

    def allow_cpu_device(self, node: torch.fx.Node) -> bool:
        """Whether a node takes a CPU tensor and gives one on xla: a copy to it."""
        return self._target(node) is not None

    def _target(self, node: torch.fx.Node) -> str | None:
        device: Any = node.kwargs.get("device")
        if node.op == "call_method" and node.target == "to" and device is None and len(node.args) > 1:
            device = node.args[1]
        elif node.target is not torch.ops.aten._to_copy.default and not (
            node.op == "call_method" and node.target == "to"
        ):
            return None
        return str(device) if _type(device) == "xla" else None


def _type(device: Any) -> str | None:
    if isinstance(device, str):
        return device.partition(":")[0]
    return device.type if isinstance(device, torch.device) else None
