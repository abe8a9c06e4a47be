"""A model's gradients by each road, and how far they are from eager's."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

import torch

from .models import Model

#: Of the largest gradient of the model: what counts as the size of a gradient that is 0 but for rounding, such as that
#: of a bias before a batch norm.
FLOOR = 1e-3

Tensors = dict[str, torch.Tensor]


class Difference(NamedTuple):
    """Where a road is farthest from eager's numbers.

    Attributes:
        error: the largest difference, of the largest number of the same tensor.
        name: of the parameter, buffer or input.
    """

    error: float
    name: str


def prepared(model: Model) -> torch.nn.Module:
    """The model in float64, without chance, and with no parameter at a value that hides others from their gradient."""
    torch.manual_seed(0)
    built = model.build().double().train()
    for module in built.modules():
        if "Drop" in type(module).__name__ or type(module).__name__ == "StochasticDepth":
            for probability in ("p", "drop_prob"):
                if hasattr(module, probability):
                    setattr(module, probability, 0.0)
        for probability in ("dropout", "attention_dropout", "activation_dropout"):
            if isinstance(getattr(module, probability, None), float):
                setattr(module, probability, 0.0)
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.numel() == 1 or parameter.std() < 1e-3:  # as layer scales of 1e-5, and gammas of 0
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return built


def run(model: torch.nn.Module, inputs: Tensors, device: str, *, compiled: bool) -> Tensors:
    """Gradients of one training step's loss, and the buffers that it leaves.

    Args:
        model: on the CPU, left as it is.
        inputs: arguments by name, on the CPU.
        device: that it runs on.

    Returns:
        CPU tensors, by what they belong to.
    """
    model = copy.deepcopy(model).to(device)
    inputs = {
        name: tensor.to(device, copy=True).requires_grad_(tensor.is_floating_point()) for name, tensor in inputs.items()
    }
    y = (torch.compile(model, backend="openxla", dynamic=False) if compiled else model)(**inputs)
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(y.shape, dtype=torch.float64, generator=generator)
    (y * weights.to(device)).sum().backward()
    found = {f"input {name}": tensor.grad for name, tensor in inputs.items()}
    found |= {name: parameter.grad for name, parameter in model.named_parameters()}
    found |= {f"buffer {name}": buffer for name, buffer in model.named_buffers() if buffer.is_floating_point()}
    return {name: tensor.detach().cpu() for name, tensor in {"output": y, **found}.items() if tensor is not None}


def difference(found: Tensors, expected: Tensors) -> Difference:
    """Where two runs are farthest apart."""
    assert found.keys() == expected.keys()
    largest = max(tensor.abs().max().item() for tensor in expected.values() if tensor.numel())
    worst = Difference(0.0, "")
    for name, tensor in expected.items():
        if tensor.numel():
            size = max(tensor.abs().max().item(), FLOOR * largest)
            error = (found[name] - tensor).abs().max().item() / size
            worst = max(worst, Difference(error if error == error else float("inf"), name))
    return worst


def reference(model: torch.nn.Module, inputs: Tensors) -> Tensors:
    """Eager's numbers, but for the gradients that torch's kernels have wrong (docs/operators.md, "Where torch is
    wrong"): of hard sigmoids, and of the batch norms of one image. Those are the formulas'.
    """
    batch = next(iter(inputs.values())).shape[0]
    functional = torch.nn.functional
    with contextlib.ExitStack() as formulas:
        formulas.enter_context(mock.patch.object(functional, "hardsigmoid", _hardsigmoid))
        if batch == 1:
            formulas.enter_context(mock.patch.object(functional, "batch_norm", _batch_norm))
        return run(model, inputs, "cpu", compiled=False)


ROADS: dict[str, dict[str, Any]] = {
    "lazy": {"device": "xla", "compiled": False},
    "compiled": {"device": "xla", "compiled": True},
    "cpu": {"device": "cpu", "compiled": True},
}


def differences(model: Model, batch: int, roads: list[str]) -> Iterator[tuple[str, Difference]]:
    """How far each road's numbers are from the reference's."""
    built = prepared(model)
    inputs = model.inputs(batch)
    expected = reference(built, inputs)
    for road in roads:
        torch._dynamo.reset()
        yield road, difference(run(built, inputs, **ROADS[road]), expected)


def _batch_norm(
    x: torch.Tensor,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    if not training:
        return torch.batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps, False)
    dims = [dim for dim in range(x.dim()) if dim != 1]
    shape = [-1 if dim == 1 else 1 for dim in range(x.dim())]
    mean, var = x.mean(dims), x.var(dims, correction=0)
    if running_mean is not None:
        count = x.numel() // x.shape[1]
        with torch.no_grad():
            running_mean.lerp_(mean, momentum)
            running_var.lerp_(var * count / (count - 1), momentum)
    y = (x - mean.view(shape)) * (var.view(shape) + eps).rsqrt()
    if weight is not None:
        y = y * weight.view(shape)
    return y if bias is None else y + bias.view(shape)


def _hardsigmoid(x: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    return torch.nn.functional.relu6(x + 3) / 6
