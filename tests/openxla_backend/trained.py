"""A small training, eager on the CPU and compiled on xla, compared after each step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.openxla_backend.helpers import counting

ONE = {"ExecuteComputation": 1, "UncachedCompile": 0, "DynamoExtractCompiledGraph": 0}
OPENXLA = functools.partial(torch.compile, backend="openxla")
STEPS = 4


class Trained:
    """A model, its optimizer, and what a step does with them; the same on every device."""

    def __init__(self, device: str, step: Callable[..., Any], optimizer: Callable[..., Any] | None = None):
        torch.manual_seed(0)
        self.device = device
        self.model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.BatchNorm1d(6), nn.Linear(6, 2)).to(device)
        make = optimizer or functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
        self.optimizer = make(self.model.parameters())
        self.step = functools.partial(step, self)

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).square().mean()

    def state(self) -> list[Any]:
        """Everything that a step may change."""
        found = [*self.model.state_dict().values(), *(p.grad for p in self.model.parameters())]
        for state in self.optimizer.state.values():
            found += [value for value in state.values() if isinstance(value, torch.Tensor)]
        return [None if value is None else value.detach().cpu().double() for value in found]


def both(
    step: Callable[..., Any],
    optimizer: Callable[..., Any] | None = None,
    compile: Callable[..., Any] = OPENXLA,
) -> tuple[Trained, Trained]:
    """The same training, eager on the CPU and compiled on xla."""
    eager, compiled = (Trained(device, step, optimizer) for device in ("cpu", "xla"))
    compiled.step = compile(compiled.step)
    return eager, compiled


def batches(count: int = STEPS) -> list[torch.Tensor]:
    torch.manual_seed(1)
    return list(torch.randn(count, 5, 4))


def run(eager: Trained, compiled: Trained, is_one: bool = True, count: int = STEPS) -> None:
    """Steps on both, compared after each."""
    for number, x in enumerate(batches(count)):
        wanted = eager.step(x)
        with counting(*ONE) as counts:
            got = compiled.step(x.to("xla"))
        assert number < 2 or not is_one or counts == ONE
        torch.testing.assert_close(got.detach().cpu(), wanted.detach())
        assert (got.requires_grad, got.is_leaf) == (wanted.requires_grad, wanted.is_leaf)
        torch.testing.assert_close(compiled.state(), eager.state())


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[torch.Tensor], torch.Tensor]:
    """A whole training step of any model."""

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def zero_grad_last(trained: Trained, x: torch.Tensor) -> torch.Tensor:
    loss = trained.loss(x)
    loss.backward()
    trained.optimizer.step()
    trained.optimizer.zero_grad()
    return loss


def zero_grad_first(trained: Trained, x: torch.Tensor) -> torch.Tensor:
    trained.optimizer.zero_grad()
    loss = trained.loss(x)
    loss.backward()
    trained.optimizer.step()
    return loss.detach()
