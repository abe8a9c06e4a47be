"""Trains a program's network. The function is part of the report of a program that differs: it uses torch alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

STEPS = 3


def train(
    program: Any, device: str, compiled: str = "", backend: str = "openxla", prepare: Callable[..., None] | None = None
) -> dict[str, torch.Tensor]:
    """What a training of three steps shows: losses, gradients of the first step, parameters, buffers, states.

    Args:
        program: defines `Net`, `batch`, `loss_of`, `optimizer_of`, `scheduler_of`, `backward` and `step`.
        compiled: "" for none, "model" or "step".
        prepare: is called with the model and its optimizer before they are used.
    """
    torch.manual_seed(0)
    model = program.Net().double()
    batches = [program.batch(number) for number in range(STEPS)]
    model = model.to(device)
    optimizer = program.optimizer_of(model, device)
    if prepare is not None:
        prepare(model, optimizer)
    scheduler = program.scheduler_of(optimizer)
    step = torch.compile(program.step, backend=backend) if compiled == "step" else program.step
    forward = torch.compile(model, backend=backend) if compiled == "model" else model
    seen: dict[str, torch.Tensor] = {}
    for number, (x, target) in enumerate(batches):
        wants = x.requires_grad
        x = x.detach().to(device, copy=True).requires_grad_(wants)  # a network may write to it
        loss = step(forward, optimizer, x, target.to(device))
        if scheduler is not None:
            scheduler.step()
        seen[f"loss of step {number}"] = loss.detach().cpu()
        if number == 0:
            for name, parameter in [*model.named_parameters(), ("the input", x)]:
                gradient = parameter.grad
                seen[f"gradient of {name}"] = torch.tensor(math.nan) if gradient is None else gradient.cpu().clone()
    for name, value in model.state_dict().items():
        seen[f"{name} after {STEPS} steps"] = value.detach().cpu().clone()
    for number, parameter in enumerate(model.parameters()):
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                seen[f"{key} of parameter {number}"] = value.detach().cpu().clone()
    if compiled == "model" or device == "cpu":
        with torch.no_grad():
            seen["the result without gradients"] = forward(batches[0][0].to(device)).cpu()
    return seen
