"""SGD whose skipped steps are decided on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class SGD(torch.optim.SGD):
    """`torch.optim.SGD` whose `step` takes `found_inf`.

    A momentum begins as the first gradient that is not skipped, and the host does not know which that is. So its
    buffers start as zeros, beside a count of steps on the device.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, found_inf: torch.Tensor | None = None) -> Any:  # type: ignore[override]
        """One step.

        Args:
            closure: computes the loss again, as in torch.
            found_inf: one number, on the device: the step is skipped if it is not 0.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    skip = None if found_inf is None else found_inf.reshape(()) != 0
                    self._update(parameter, parameter.grad, group, skip)
        return loss

    def _update(
        self, parameter: torch.Tensor, grad: torch.Tensor, group: dict[str, Any], skip: torch.Tensor | None
    ) -> None:
        def unless_skipped(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
            return new if skip is None else torch.where(skip, old, new)

        update = -grad if group["maximize"] else grad
        if group["weight_decay"]:
            update = update + group["weight_decay"] * parameter
        momentum = group["momentum"]
        if momentum:
            state = self.state[parameter]
            if "step" not in state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["momentum_buffer"] = torch.zeros_like(parameter)
            count, buffer = state["step"], state["momentum_buffer"]
            moved = torch.where(count == 0, update, momentum * buffer + (1 - group["dampening"]) * update)
            update = update + momentum * moved if group["nesterov"] else moved
            buffer.copy_(unless_skipped(moved, buffer))
            count.copy_(unless_skipped(count + 1, count))
        parameter.copy_(unless_skipped(parameter - group["lr"] * update, parameter))
