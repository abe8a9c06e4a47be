"""Optimizers in the graph of the backward pass before them (`step_capture.py`)."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from lazy_runtime.compat import dynamo
from lazy_runtime.compat.dynamo import (
    ArgMappingException,
    OptimizerVariable,
    OutputGraph,
    SkipFunctionVariable,
    TensorVariable,
    graph_break,
    init_group_of,
    innermost_fn,
    use_grad_for_differentiable,
    variables,
)

from ..execution import step

#: Whether a graph is compiled by the backends that this is for.
Ours = Callable[[OutputGraph], bool]

#: What Dynamo reads an optimizer's attribute with.
_READ = (
    dynamo.read_optimizer_until_2_13 if dynamo.read_optimizer_until_2_13.is_there() else dynamo.read_optimizer_from_2_14
)

EXCHANGED = (dynamo.call_skipped_function, dynamo.call_optimizer_method, _READ)


def trace_step(ours: Ours) -> None:
    """Lets an optimizer's step be in the graph of the backward pass before it. What would end the training step where
    the optimizer's returns (`step.py`) has nothing to do then: the graph itself does (`backend.py`).
    """
    in_step = use_grad_for_differentiable(lambda self: None).__code__
    original = dynamo.call_skipped_function.get()

    @functools.wraps(original)
    def call_function(self: SkipFunctionVariable, tx: Any, *args: Any, **kwargs: Any) -> Any:
        is_passed = self.value is step.end or (self.value is graph_break and tx.f_code is in_step)
        if is_passed and _has_backward(tx.output) and ours(tx.output):
            return variables.ConstantVariable.create(None)
        return original(self, tx, *args, **kwargs)

    dynamo.call_skipped_function.set(call_function)


def _has_backward(output: OutputGraph) -> bool:
    return bool(output.autograd_grad_consumed_grad_fns)


def trace_state(ours: Ours) -> None:
    """Dynamo runs an optimizer's `_init_group`, which makes its state and finds what has gradients. Gradients of a
    backward pass in the same graph are not there to be found, so this one is traced, once the state is made.
    """
    original = dynamo.call_optimizer_method.get()

    @functools.wraps(original)
    def call_method(self: OptimizerVariable, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name == dynamo.INIT_GROUP and _has_backward(tx.output) and ours(tx.output):
            with contextlib.suppress(ArgMappingException):
                _make_state(self.value, tx.output, *self.get_python_args(*args, **kwargs))
                self.move_step_if_cpu()  # as Dynamo does, which loses what is written to a float64 scalar on the CPU
                return _call_undisabled(self, tx, name, args, kwargs)
        return original(self, tx, name, args, kwargs)

    dynamo.call_optimizer_method.set(call_method)


def _gets_gradient(output: OutputGraph, parameter: torch.Tensor) -> bool:
    """Whether the graph gives a parameter a gradient that it has not had."""
    effects = output.side_effects
    found = effects.id_to_variable.get(id(parameter))
    return parameter.grad is None and found is not None and effects.has_pending_mutation_of_attr(found, "grad")


def _make_state(optimizer: Any, output: OutputGraph, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Makes the state of all groups, unless Dynamo has looked at it: it would not see what comes now, but guard it."""
    if id(optimizer.state) in output.side_effects.id_to_variable:
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"] if _gets_gradient(output, p)]
    with torch.no_grad(), _with_gradients(parameters):
        for group in optimizer.param_groups:
            init_group_of(optimizer)(
                *_of_group(group, args), **dict(zip(kwargs, _of_group(group, kwargs.values()), strict=True))
            )


def _of_group(group: dict[str, Any], args: Iterable[Any]) -> list[Any]:
    """Arguments of `_init_group`, for another group of parameters than the one that it is called for."""
    return [group if isinstance(arg, dict) else [] if isinstance(arg, list) else arg for arg in args]


@contextlib.contextmanager
def _with_gradients(parameters: Sequence[torch.Tensor]) -> Iterator[None]:
    """Gradients of which nobody looks at the elements."""
    for parameter in parameters:
        parameter.grad = parameter.new_empty(()).expand_as(parameter)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.grad = None


def read_gradients(ours: Ours) -> None:
    """Dynamo notes on what it finds as `.grad` where it has found it. After `p.grad = None` that is the one object that
    stands for None everywhere, in what is compiled later too (mended in torch 2.15).
    """
    if not dynamo.method_attr_grad.is_there():  # torch 2.11, which notes nothing there
        return
    original = dynamo.method_attr_grad.get()

    @functools.wraps(original)
    def method_attr_grad(self: TensorVariable, tx: Any) -> Any:
        found = original(self, tx)
        if isinstance(found, variables.ConstantVariable) and ours(tx.output):
            return variables.ConstantVariable(found.value)
        return found

    dynamo.method_attr_grad.set(method_attr_grad)


def trace_zero_grad(ours: Ours) -> None:
    original = _READ.get()

    @functools.wraps(original)
    def read(self: OptimizerVariable, tx: Any, name: str) -> Any:
        found = original(self, tx, name)
        if name != "zero_grad" or type(found) is not variables.UserMethodVariable or not ours(tx.output):
            return found
        is_torchs = type(self.value).zero_grad is torch.optim.Optimizer.zero_grad
        return _ZeroGrad(found.fn, found.obj, source=found.source) if is_torchs and _has_xla(self.value) else found

    _READ.set(read)


def _has_xla(optimizer: torch.optim.Optimizer) -> bool:
    return any(p.device.type == "xla" for group in optimizer.param_groups for p in group["params"])


class _ZeroGrad(variables.UserMethodVariable):
    """The method as it is found, for what Dynamo leaves to Python, and with what it does, for what it traces."""

    def call_function(self, tx: Any, args: Any, kwargs: Any) -> Any:
        return _call_undisabled(self.obj, tx, "zero_grad", args, kwargs)


def trace_scheduled_step(ours: Ours) -> None:
    """A learning rate's scheduler puts a function around its optimizer's step, to know that it was called, and Dynamo
    does not look into it (`torch.optim.lr_scheduler.LRScheduler.__init__`).
    """
    original = _READ.get()

    @functools.wraps(original)
    def read(self: OptimizerVariable, tx: Any, name: str) -> Any:
        found = original(self, tx, name)
        if name != "step" or not isinstance(found, SkipFunctionVariable) or not ours(tx.output):
            return found
        if not dynamo.is_scheduled(found.value) or not _has_backward(tx.output):
            return found
        dynamo.note_step(self.value)
        return variables.UserMethodVariable(found.value.__wrapped__, self)

    _READ.set(read)


def _call_undisabled(optimizer: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
    method = variables.UserMethodVariable(_undisabled(getattr(type(optimizer.value), name)), optimizer)
    return method.call_function(tx, args, kwargs)


def _undisabled(function: Any) -> Any:
    """What Dynamo is not to look into, without that mark."""
    return inspect.unwrap(innermost_fn(function))
