"""Whether the package works on the device at all: small programs, whose values are compared with the CPU's."""

from __future__ import annotations

import copy
from typing import Any

import torch

#: Products on a GPU add in another order than the CPU's, which small programs show as little.
BOUND = 1e-3

STEPS = 3


def _model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 8))


def _inputs() -> torch.Tensor:
    return torch.linspace(-1, 1, 16 * 64).reshape(16, 64)


def _result(actual: torch.Tensor, expected: torch.Tensor) -> dict[str, Any]:
    """The relative error.

    Raises:
        ValueError: it is too large, or no number.
    """
    error = ((actual - expected).norm() / expected.norm()).item()
    if not error <= BOUND:
        raise ValueError(f"relative error {error:.1e}, at most {BOUND:.0e} is allowed")
    return {"error": error}


def operators(device: str, platform: str) -> dict[str, Any]:
    """Operators without a compiler.

    Raises:
        ValueError: the values differ, or the xla device is none of the platform's.
    """
    from lazy_runtime import real_devices

    found = real_devices()[0]
    if device == "xla" and not found.startswith(platform):
        raise ValueError(f"the xla device is {found}, where {platform} was asked for")
    x = _inputs()
    placed = x.to(device)
    return {"device": found, **_result((placed @ placed.mT).softmax(-1).cpu(), (x @ x.mT).softmax(-1))}


def compiled(device: str, platform: str) -> dict[str, Any]:
    """`torch.compile(backend="openxla")` of a model's inference."""
    model, x = _model().eval(), _inputs()
    placed = copy.deepcopy(model).to(device)
    with torch.no_grad():
        actual = torch.compile(placed, backend="openxla")(x.to(device))
        return _result(actual.cpu(), model(x))


def training_step(device: str, platform: str) -> dict[str, Any]:
    """Training steps with the model compiled: the updates of the parameters."""
    model = _model()
    placed = copy.deepcopy(model).to(device)
    _train(placed, torch.compile(placed, backend="openxla"), _inputs().to(device))
    expected = copy.deepcopy(model)
    _train(expected, expected, _inputs())

    def updates(trained: torch.nn.Module) -> torch.Tensor:
        pairs = zip(trained.parameters(), model.parameters(), strict=True)
        return torch.cat([(now.detach().cpu() - before.detach()).flatten() for now, before in pairs])

    return _result(updates(placed), updates(expected))


def _train(model: torch.nn.Module, call: Any, inputs: torch.Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(STEPS):
        call(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


#: Name → the check, and whether it is one of the xla device; else it is one of the device's own tensors.
CHECKS = {
    "operators on xla": (operators, True),
    "compiled on xla": (compiled, True),
    "compiled on the device's own tensors": (compiled, False),
    "training steps on xla": (training_step, True),
    "training steps on the device's own tensors": (training_step, False),
}
