"""Adam and AdamW whose skipped steps are decided on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class _SyncFree:
    """Mixed into an optimizer of torch's: takes a step, and takes it back where the gradients were infinite.

    Within one XLA program that is a choice between the old and the new value of each number.
    """

    def step(self: Any, closure: Callable[[], Any] | None = None, found_inf: torch.Tensor | None = None) -> Any:
        """One step.

        Args:
            closure: computes the loss again, as in torch.
            found_inf: one number, on the device: the step is skipped if it is not 0.
        """
        step = super().step  # type: ignore[misc]
        if found_inf is None:
            return step(closure)
        with torch.no_grad():
            skip = found_inf.reshape(()) != 0
            held = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
            before = [p.clone() for p in held]
            states = [{k: v.clone() for k, v in self.state[p].items() if torch.is_tensor(v)} for p in held]
        loss = step(closure)
        with torch.no_grad():
            for p, old, state in zip(held, before, states, strict=True):
                p.copy_(torch.where(skip, old, p))
                for name, new in self.state[p].items():
                    if torch.is_tensor(new):  # what this step has made began as zeros
                        new.copy_(torch.where(skip, state.get(name, torch.zeros_like(new)), new))
        return loss


class Adam(_SyncFree, torch.optim.Adam):
    """`torch.optim.Adam` with its step counts on the device, whose `step` takes `found_inf`."""

    def __init__(self, params: Any, *args: Any, **kwargs: Any):
        super().__init__(params, *args, **{"capturable": True, **kwargs})


class AdamW(_SyncFree, torch.optim.AdamW):
    """`torch.optim.AdamW` with its step counts on the device, whose `step` takes `found_inf`."""

    def __init__(self, params: Any, *args: Any, **kwargs: Any):
        super().__init__(params, *args, **{"capturable": True, **kwargs})
