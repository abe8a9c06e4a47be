"""A training step that is compiled as a whole is one graph: forward, backward, the optimizer's update, `zero_grad`.

Dynamo by itself makes three of it, with autograd between them. It leaves `loss.backward()` to autograd unless
`torch._dynamo.config.trace_autograd_ops` is set, and then still when the loss is returned; it breaks the graph on
purpose where an optimizer's step begins and ends, for inductor's sake (pytorch/pytorch#104053); and it does not look
into `zero_grad`. What is here makes Dynamo go on, for this backend and tensors on xla alone. Where one of the
conditions does not hold, Dynamo does as ever, which is slower and no less right.

It exchanges methods of Dynamo's own, which another version of torch may not have: then nothing is exchanged
(`is_possible`), and the first compilation warns.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from lazy_runtime.compat import dynamo
from lazy_runtime.compat.dynamo import (
    AttrSource,
    GuardBuilder,
    OutputGraph,
    TensorVariable,
    collect_reachable_grad_fns,
    config,
    install_guard,
    is_from_optimizer_source,
    unimplemented,
    wrap_fx_proxy,
)
from lazy_runtime.compat.torch import HOOKS, DelayedError, HigherOrderOperator, tree_leaves
from lazy_runtime.compat.tracing import chained_source_get_value

from . import traced_optimizers
from .traced_optimizers import Ours

#: In the `meta` of an output of Dynamo's graph: it is a tensor whose backward pass the graph has run.
SPENT = "openxla_spent"

_CHECKPOINTS = ("tag_activation_checkpoint", "wrap_activation_checkpoint")

_EXCHANGED = (
    dynamo.method_backward,
    dynamo.collect_backward_inputs,
    dynamo.validate_outputs,
    *traced_optimizers.EXCHANGED,
)


def is_possible() -> bool:
    """Whether this version of torch can be made to trace whole steps."""
    return not _missing()


def _missing() -> list[str]:
    return [place.name for place in _EXCHANGED if not place.is_there()]


@functools.cache
def warn_if_impossible() -> None:
    """Says once in a process that steps are traced in parts."""
    if missing := _missing():
        warnings.warn(
            f"backend='openxla' cannot trace a training step as one graph with torch {torch.__version__}, whose Dynamo "
            f"has no {', '.join(missing)}: the step is computed in several programs. Install a version of torch that "
            "this package supports, or another version of this package",
            RuntimeWarning,
            stacklevel=2,
        )


@functools.cache
def trace_steps(backends: Sequence[Callable[..., Any]]) -> None:
    """Makes Dynamo trace training steps on xla as one graph.

    Args:
        backends: the functions for which it is to do so.
    """
    if not is_possible():
        return
    ours = is_for(backends)
    _trace_backward(ours)
    _return_spent(ours)
    _forget_what_lacks_attributes()
    traced_optimizers.trace_step(ours)
    traced_optimizers.trace_state(ours)
    traced_optimizers.read_gradients(ours)
    traced_optimizers.trace_zero_grad(ours)
    traced_optimizers.trace_scheduled_step(ours)


def is_for(backends: Iterable[Callable[..., Any]]) -> Ours:
    """Whether a graph is compiled by one of these backends."""
    return functools.partial(_is_for, frozenset(backends))


def _is_for(backends: frozenset[Callable[..., Any]], output: OutputGraph) -> bool:
    """Whether one of these backends compiles this graph."""
    found: Any = output.compiler_fn
    while found is not None and found not in backends:  # Dynamo wraps it for debugging, `torch.compile` for its options
        found = getattr(found, "compiler_fn", None)
    return found is not None


# ---- backward()


def _trace_backward(ours: Ours) -> None:
    original = dynamo.method_backward.get()

    @functools.wraps(original)
    def method_backward(self: TensorVariable, tx: Any, *args: Any, **kwargs: Any) -> Any:
        if not ours(tx.output):
            return original(self, tx, *args, **kwargs)
        given = inspect.signature(original).bind(self, tx, *args, **kwargs).arguments
        if not (_is_on_xla(self) and _is_plain(given) and _can_be_one_graph(tx.output, self)):
            return original(self, tx, *args, **kwargs)
        with config.patch(trace_autograd_ops=True):
            result = original(self, tx, *args, **kwargs)
        _refuse_sparse_gradients(tx.output)
        return result

    dynamo.method_backward.set(method_backward)
    if dynamo.tensor_methods.is_there() and "backward" in (table := dynamo.tensor_methods.get()):
        table["backward"].handler = method_backward  # from torch 2.14 on Dynamo calls what is there
    _find_all_leaves(ours)


def _refuse_sparse_gradients(output: OutputGraph) -> None:
    """Breaks the graph at this `backward()`, if it gives some."""
    for node in output.graph.find_nodes(op="call_function", target=torch.autograd.grad):
        gradients = tree_leaves(node.meta["example_value"])
        if any(isinstance(each, torch.Tensor) and each.layout is not torch.strided for each in gradients):
            unimplemented(
                gb_type="openxla: sparse gradient",
                context="Tensor.backward()",
                explanation="A gradient that is sparse cannot be in a compiled graph.",
                hints=["Stay dense: `sparse=False` in nn.Embedding."],
            )


def _find_all_leaves(ours: Ours) -> None:
    """Dynamo looks for leaves among the graph's arguments, and puts parameters that it meets in an optimizer's
    `param_groups` into the graph as attributes: it would give them no gradients (torch 2.13).
    """
    original = dynamo.collect_backward_inputs.get()

    @functools.wraps(original)
    def collect(self: TensorVariable, vars_iter: Iterable[Any], error_on_non_leaf: bool = False) -> Any:
        output: OutputGraph = self.as_proxy().tracer.output_graph  # type: ignore[attr-defined]
        if not error_on_non_leaf and ours(output):
            vars_iter = [*vars_iter, *_leaves(output)]
        return original(self, vars_iter, error_on_non_leaf)

    dynamo.collect_backward_inputs.set(collect)


def _is_on_xla(tensor: TensorVariable) -> bool:
    return _example(tensor).device.type == "xla"


def _example(tensor: TensorVariable) -> torch.Tensor:
    """The fake tensor that Dynamo traces with."""
    return tensor.as_proxy().node.meta["example_value"]


def _is_plain(arguments: dict[str, Any]) -> bool:
    """Whether nothing is to go backward once more."""
    flags = [arguments.get(name) for name in ("retain_graph", "create_graph")]
    return all(flag is None or (flag.is_python_constant() and not flag.as_python_constant()) for flag in flags)


def _can_be_one_graph(output: OutputGraph, loss: TensorVariable) -> bool:
    """Whether the graph means the same with its backward pass in it.

    Hooks on leaves are run by autograd alone; Dynamo's graph would leave them out, and its guards do not see that one
    is added. XLA would merge what an activation checkpoint recomputes with the first computation.
    """
    if any(
        isinstance(node.target, HigherOrderOperator) and node.target.name() in _CHECKPOINTS
        for node in output.graph.nodes
    ):
        return False
    leaves = _leaves(output)
    if any(leaf.source is None for leaf in leaves):  # nothing to guard
        return False
    if not _accumulated(loss) <= {id(_example(found)) for found in [*leaves, *output.leaf_var_creation_order]}:
        return False
    hooks = [(leaf, name) for leaf in leaves for name in HOOKS]
    if any(getattr(_tensor_behind(output, leaf), name) for leaf, name in hooks):
        return False
    # of parameters that Dynamo has met in an optimizer's `param_groups` it guards which tensors they are, and no more
    known = [found for found in _tensors(output) if found.as_proxy().node.op == "get_attr" and found.source is not None]
    for found, name in [*hooks, *((found, "requires_grad") for found in known)]:
        install_guard(AttrSource(found.source, name).make_guard(GuardBuilder.CONSTANT_MATCH))
    return True


def _accumulated(loss: TensorVariable) -> set[int]:
    """The fake tensors, by their identity, that autograd would give gradients to."""
    nodes: Any = collect_reachable_grad_fns([(_example(loss), None)])
    return {id(node.variable) for node in nodes if hasattr(node, "variable")}


def _leaves(output: OutputGraph) -> list[Any]:
    """The tensors that come from outside of the graph and require gradients."""
    return [found for found in _tensors(output) if found.requires_grad and not found.has_grad_fn]


def _tensors(output: OutputGraph) -> list[Any]:
    """The tensors that come from outside of the graph."""
    return [found for found in output.side_effects.id_to_variable.values() if _is_given(found)]


def _is_given(found: Any) -> bool:
    return isinstance(found, TensorVariable) and found.as_proxy().node.op in ("placeholder", "get_attr")


def _tensor_behind(output: OutputGraph, leaf: TensorVariable) -> torch.Tensor:
    node: Any = leaf.as_proxy().node
    return output.nn_modules[node.target] if node.op == "get_attr" else node.meta["grapharg"].example


def _forget_what_lacks_attributes() -> None:
    """Where Dynamo guards that an object has no such attribute, as an optimizer no `found_inf`, torch 2.11 looks for it
    and keeps the object for good, among the names that all guards share (2.13 does not look).
    """
    original = chained_source_get_value.get()

    @functools.wraps(original)
    def get_value(self: Any, globals: Any, locals: dict[str, Any], cache: Any) -> Any:
        try:
            return original(self, globals, locals, cache)
        except Exception:
            locals.pop("tmp", None)
            raise

    chained_source_get_value.set(get_value)


# ---- tensors that the step returns


def _return_spent(ours: Ours) -> None:
    """Dynamo gives up tracing `backward()` where a tensor that it has passed through is returned, as losses are: the
    user might go backward again, which has to raise. Here it does (`reattach`).
    """
    original = dynamo.validate_outputs.get()

    @functools.wraps(original)
    def validate(self: OutputGraph, rv: list[Any], tx: Any) -> None:
        if self.autograd_grad_consumed_grad_fns and ours(self):
            _guard_parameters(self)
            rv[:] = [_detached(tx, found) if _is_spent(self, found) else found for found in rv]
        original(self, rv, tx)

    dynamo.validate_outputs.set(validate)


def _guard_parameters(output: OutputGraph) -> None:
    """Where Dynamo finds a tensor of an optimizer elsewhere as well, it notes that they are one, but guards that of
    no optimizer: a module that is given another parameter would still be trained with the one before.
    """
    for guard in list(output.guards):
        if guard.create_fn_name() == "DUPLICATE_INPUT":
            create: Any = guard.create_fn
            sources = guard.originating_source, create.keywords["source_b"]
            if any(map(is_from_optimizer_source, sources)):
                for source in sources:
                    install_guard(source.make_guard(GuardBuilder.ID_MATCH))


def _is_spent(output: OutputGraph, found: Any) -> bool:
    if not isinstance(found, TensorVariable) or not found.requires_grad:
        return False
    return bool(collect_reachable_grad_fns([(_example(found), None)]) & output.autograd_grad_consumed_grad_fns)


def _detached(tx: Any, found: TensorVariable) -> Any:
    proxy = tx.output.create_proxy("call_method", "detach", (found.as_proxy(),), {})
    proxy.node.meta[SPENT] = True
    return wrap_fx_proxy(tx=tx, proxy=proxy)


def reattach(gm: torch.fx.GraphModule, compiled: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled graph, with outputs that look to autograd as after `backward()`: they require gradients, and raise
    when asked for them again.
    """
    outputs: Any = gm.graph.output_node().args[0]
    spent = [n for n, node in enumerate(outputs) if isinstance(node, torch.fx.Node) and node.meta.get(SPENT)]
    if not spent:
        return compiled

    def call(*arguments: Any) -> list[Any]:
        results = list(compiled(*arguments))
        for number in spent:
            results[number] = _spent(results[number])
        return results

    return call


def _spent(tensor: torch.Tensor) -> torch.Tensor:
    return DelayedError(_SECOND_TIME, 1)(tensor.requires_grad_())


_SECOND_TIME = (
    "Trying to backward through the graph a second time: a step compiled with backend='openxla' has run this tensor's "
    "backward pass. Specify retain_graph=True in that one."
)
