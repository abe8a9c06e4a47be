"""The calls of `module_db`'s rows."""

from __future__ import annotations

from typing import Any

import torch

from . import rows
from .arguments import CPU, Target, differentiable, place
from .case import Call, Case, Wrap, gradients


def cases(row: rows.Row) -> list[Case]:
    """Each constructor and each forward input, in training and in evaluation."""
    info, dtype = rows.entry_of(row), row.torch_dtype
    backward = row.direction == "backward"
    if row.direction == "errors":
        errors = info.module_error_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=False, training=True
        )
        inputs = [(error.module_error_input, True) for error in errors]
        dtype = torch.float32
    else:
        inputs = [
            (each, training)
            for training in (True, False)
            for each in info.module_inputs_func(
                info, device="cpu", dtype=dtype, requires_grad=backward, training=training
            )
            if each.forward_input is not None
        ]
    return [_case(info, dtype, each, training, backward) for each, training in inputs]


def _case(info: Any, dtype: torch.dtype, inputs: Any, training: bool, backward: bool) -> Case:
    """What the module gives, and its buffers after that; or the gradients of its parameters and arguments."""

    def prepare(target: Target) -> Call:
        constructor, forward = inputs.constructor_input, inputs.forward_input
        torch.manual_seed(0)  # for the parameters
        args, kwargs = place((constructor.args, constructor.kwargs), CPU)
        module = info.module_cls(*args, **kwargs).to(dtype).train(training)
        if info.is_lazy:
            args, kwargs = place((forward.args, forward.kwargs), CPU)
            module(*args, **kwargs)
        module = module.to(target.device, target.dtype(dtype))
        args, kwargs = place((forward.args, forward.kwargs), target)

        def call(wrap: Wrap) -> Any:
            outputs = wrap(module)(*args, **kwargs)
            if not backward:
                return outputs, dict(module.named_buffers())
            return gradients(outputs, [*module.parameters(), *differentiable((args, kwargs))])

        return call

    return Case(prepare, f"{info.name}{_constructor(inputs)} training={training} {inputs.desc}")


def _constructor(inputs: Any) -> str:
    """How the module was made, in words."""
    made = inputs.constructor_input
    return f"({', '.join([*map(repr, made.args), *(f'{key}={value!r}' for key, value in made.kwargs.items())])})"
