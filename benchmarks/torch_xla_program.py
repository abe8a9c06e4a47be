"""A model through PyTorch/XLA, in an environment of its own: torch_xla and this package do not go together in one."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
import torch_xla  # pyright: ignore[reportMissingImports]
from torch_xla.core import xla_model  # pyright: ignore[reportMissingImports]

LEARNING_RATE, MOMENTUM = 1e-2, 0.9  # as in `training_step.py`, which needs this package


class Program:
    """A copy of a model on torch_xla's device; it has the methods of `modes.Program` that `served.py` calls.

    Args:
        test: of `modes.TESTS`.
        dynamo: through `torch.compile(backend="openxla")`, which is torch_xla's there; else traced.
        loop: steps of a round, in the test `step`.
    """

    def __init__(self, model: torch.nn.Module, inputs: Sequence[torch.Tensor], test: str, dynamo: bool, loop: int = 1):
        device = torch_xla.device()
        self._original = model
        self._model = copy.deepcopy(model).to(device)
        self._inputs = [tensor.to(device) for tensor in inputs]
        self._call = torch.compile(self._model, backend="openxla") if dynamo else self._model
        self._test = test
        self._loop = loop if test == "step" else 1
        self._results: list[torch.Tensor] = []
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
        self._wait()

    def round(self) -> Sequence[float]:
        """What is timed at once."""
        for _ in range(self._loop):
            self._start()
            if self._test == "step":
                torch_xla.sync()
        self._wait()
        return ()

    def _start(self) -> None:
        if self._test == "inference":
            with torch.no_grad():
                self._results = [self._call(*self._inputs)]
            return
        loss = self._call(*self._inputs).square().mean()
        loss.backward()
        if self._test == "step":
            self._optimizer.step()
            self._optimizer.zero_grad()

    def _wait(self) -> None:
        torch_xla.sync()
        xla_model.wait_device_ops()

    def clear(self) -> None:
        """Forgets the last round's results."""
        self._results = []
        if self._test != "step":
            self._model.zero_grad(set_to_none=True)

    def first_step_again(self) -> None:
        """Has steps begin where they first began, and runs one."""
        if self._test == "step":
            self._model.load_state_dict(self._original.state_dict())
            for state in self._optimizer.state.values():
                state["momentum_buffer"].zero_()
            self._wait()
            self._start()
            self._wait()

    def results(self) -> dict[str, torch.Tensor]:
        """Outputs, gradients or updates, on the CPU and by the names of `modes.Program` and `training_step.Step`."""
        if self._test == "inference":
            return {f"output {i}": tensor.cpu() for i, tensor in enumerate(self._results)}
        named = self._model.named_parameters()
        if self._test == "training":
            return {name: each.grad.cpu() for name, each in named if each.grad is not None}
        before = dict(self._original.named_parameters())
        return {name: now.detach().cpu() - before[name].detach() for name, now in named}
