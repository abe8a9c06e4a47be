"""The calls of `optim_db`'s rows."""

from __future__ import annotations

import copy
from typing import Any

import torch

from . import rows
from .arguments import Target, place
from .case import Call, Case, Wrap

_STEPS = 3


def cases(row: rows.Row) -> list[Case]:
    """Each configuration that torch tests, one parameter after another and multi-tensor; `capturable` where torch lets
    xla have it, which is not with `foreach`, nor in Adadelta.
    """
    info = rows.entry_of(row)
    if row.direction == "errors":
        return [_error(info, each) for each in info.optim_error_inputs_func("cpu", torch.float32)]
    configurations = info.optim_inputs_func("cuda")  # the CPU's, and those that need a device which keeps its steps
    made = [(each.kwargs, each.desc) for each in configurations if info.name != "Adadelta" or not _captures(each)]
    if "foreach" in info.supported_impls:
        made += [
            ({**each.kwargs, "foreach": True}, f"{each.desc}, foreach")
            for each in configurations
            if not _captures(each) and not isinstance(each.kwargs.get("lr"), torch.Tensor)
        ]
    return [_case(info, row.torch_dtype, kwargs, desc) for kwargs, desc in made]


def _captures(inputs: Any) -> bool:
    return inputs.kwargs.get("capturable", False)


def _case(info: Any, dtype: torch.dtype, configuration: dict[str, Any], desc: str) -> Case:
    def prepare(target: Target) -> Call:
        kwargs = place(configuration, target)
        if target.device == "cpu":  # torch refuses it there; it means the same
            kwargs.pop("capturable", None)
        generator = torch.Generator().manual_seed(0)

        def numbers(*shape: int) -> torch.Tensor:
            return (
                torch.randn(shape, generator=generator, dtype=torch.float64)
                .to(dtype)
                .to(target.device, target.dtype(dtype))
            )

        shapes = ((4, 3), (3, 3)) if info.name == "Muon" else ((4, 3), (3,), (1,))
        parameters = [torch.nn.Parameter(numbers(*shape)) for shape in shapes]
        gradients = [[numbers(*shape) for shape in shapes] for _ in range(_STEPS)]

        def call(wrap: Wrap) -> Any:
            optimizer = info.optim_cls(parameters, **copy.copy(kwargs))
            closure = (lambda: sum((p * p).sum() for p in parameters)) if info.step_requires_closure else None
            step = wrap(optimizer.step)
            for each in gradients:
                for parameter, gradient in zip(parameters, each, strict=True):
                    parameter.grad = gradient.to_sparse() if info.only_supports_sparse_grads else gradient
                step(closure) if closure else step()
            # Only tensors: LBFGS counts its evaluations, which the last bits of the loss decide. What counts steps may
            # be on the CPU or on the device.
            state = [
                {key: x if x.dim() else float(x) for key, x in optimizer.state[p].items() if _is_tensor(x)}
                for p in parameters
                if p in optimizer.state
            ]
            return [p.detach() for p in parameters], state

        return call

    return Case(prepare, f"{info.name}({configuration}) {desc}")


def _is_tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor)


def _error(info: Any, error: Any) -> Case:
    inputs = error.optimizer_error_input

    def prepare(target: Target) -> Call:
        parameters = (
            [torch.nn.Parameter(torch.ones(2, 2, device=target.device))] if inputs.params is None else inputs.params
        )
        moved = place((parameters, inputs.kwargs), target)

        def call(wrap: Wrap) -> Any:
            optimizer = info.optim_cls(moved[0], **moved[1])
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = torch.ones_like(parameter)
            return optimizer.step()

        return call

    return Case(prepare, f"{info.name}({inputs.kwargs}) {inputs.desc}")
