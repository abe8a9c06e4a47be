"""The whole training step: forward, loss, backward, update, and gradients cleared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import lazy_runtime

from . import measure
from .modes import Mode, Program, compiled

#: Small enough for hundreds of steps on one batch to stay finite, and large enough for an update to be told from the
#: rounding of the parameter that it changes.
LEARNING_RATE, MOMENTUM = 1e-2, 0.9

#: Steps after the first that are run before any is timed: the optimizer makes its state in the first, so the second is
#: another program.
SETTLING = 2


class Step(Program):
    """A copy of a model in one mode, with an optimizer of its own.

    Args:
        model: in train mode; it is left as it is.
        loop: steps of a timed round. Only the last of them is waited for, so that the host can prepare one while the
            device executes another.
    """

    def __init__(self, mode: Mode, model: torch.nn.Module, inputs: Sequence[torch.Tensor], loop: int = 1):
        self._losses: list[torch.Tensor] = []  # of the last step
        super().__init__(mode, model, inputs)
        self.loop = loop
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
        self._original = model
        self._step = self._whole
        if mode.whole_step and mode.backend is not None:
            self._step = compiled(self._whole, mode)

    def _compile(self) -> Callable[..., Any]:
        return self.model if self.mode.whole_step else super()._compile()

    def _whole(self, *inputs: torch.Tensor) -> torch.Tensor:
        loss = self.call(*inputs).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def start(self) -> None:
        """One step as the user's thread sees it: its results are under way on an asynchronous device."""
        self._losses = [self._step(*self.inputs)]
        if self.mode.device == "xla" and self.mode.backend is None:
            lazy_runtime.sync()  # compiled steps are executed without it

    def wait(self) -> None:
        self._results = [*self._losses, *self.model.parameters()]
        super().wait()

    def round(self) -> list[float]:
        host_times = [measure.seconds(self.start) for _ in range(self.loop)]
        self.wait()
        return host_times

    def clear(self) -> None:
        """Nothing: a step clears the gradients itself."""

    def results(self) -> dict[str, torch.Tensor]:
        """What has been added to each parameter since the start, on the CPU, by name."""
        before = dict(self._original.named_parameters())
        return {name: now.detach().cpu() - before[name].detach() for name, now in self.model.named_parameters()}

    def first_step_again(self) -> None:
        """One step from where the first began, with the program that the timed rounds have run."""
        self.model.load_state_dict(self._original.state_dict())
        for state in self.optimizer.state.values():
            state["momentum_buffer"].zero_()
        self.wait()  # the copies are no part of the step's program
        self.run()
