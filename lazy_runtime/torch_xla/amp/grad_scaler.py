"""`torch_xla.amp.GradScaler`: torch's own, that lets the optimizers of `syncfree` skip a step by themselves."""

from __future__ import annotations

import inspect
from typing import Any

import torch


class GradScaler(torch.amp.GradScaler):
    """Scales the loss so that gradients in float16 neither vanish nor overflow, and skips steps in which they did.

    To know that, the host must read a value, which cuts the step in two; an optimizer whose `step` takes `found_inf`
    (`amp.syncfree`) decides on the device instead.

    Args:
        use_zero_grad: accepted for PyTorch/XLA's sake.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        use_zero_grad: bool = False,
    ):
        super().__init__("xla", init_scale, growth_factor, backoff_factor, growth_interval, enabled)

    def _maybe_opt_step(
        self, optimizer: torch.optim.Optimizer, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        if "found_inf" not in inspect.signature(optimizer.step).parameters:
            return super()._maybe_opt_step(optimizer, optimizer_state, *args, **kwargs)
        found = torch.stack(list(optimizer_state["found_inf_per_device"].values())).sum()
        step: Any = optimizer.step
        return step(*args, found_inf=found, **kwargs)
