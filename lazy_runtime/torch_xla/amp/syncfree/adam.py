"""Adam and AdamW whose skipped steps are decided on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ._functional import adam_step


class _SyncFree:
    """Mixed into an optimizer of torch's: its state and its options, with a step that the device may skip.

    Torch's formula for step counts on the device divides by the learning rate, which gives 0/0 where that is 0, as at
    the first step of a warm-up. This one multiplies.
    """

    def step(self: Any, closure: Callable[[], Any] | None = None, found_inf: torch.Tensor | None = None) -> Any:
        """One step.

        Args:
            closure: computes the loss again, as in torch.
            found_inf: one number, on the device: the step is skipped if it is not 0.

        Raises:
            RuntimeError: a gradient is sparse.
        """
        is_adamw = issubclass(type(self), torch.optim.AdamW)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            held = [each for each in group["params"] if each.grad is not None]
            if any(each.grad.is_sparse for each in held):
                raise RuntimeError(f"{type(self).__name__} does not take sparse gradients: use torch.optim.SparseAdam")
            states = [self._state_of(each, group["amsgrad"]) for each in held]
            adam_step(
                found_inf,
                [state["step"] for state in states],
                [each.detach() for each in held],
                [each.grad for each in held],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [state["max_exp_avg_sq"] for state in states] if group["amsgrad"] else [],
                amsgrad=group["amsgrad"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=group["maximize"],
                use_adamw=is_adamw or group.get("decoupled_weight_decay", False),
            )
        return loss

    def _state_of(self: Any, param: torch.Tensor, amsgrad: bool) -> dict[str, Any]:
        """What torch's optimizer keeps of a parameter, on the parameter's device."""
        state = self.state[param]
        if not state:
            dtype = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32  # as torch counts
            state["step"] = torch.zeros((), dtype=dtype, device=param.device)
            for name in ("exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if amsgrad else [])):
                state[name] = torch.zeros_like(param, memory_format=torch.preserve_format)
        return state


class Adam(_SyncFree, torch.optim.Adam):
    """`torch.optim.Adam` with its step counts on the device, whose `step` takes `found_inf`."""

    def __init__(self, params: Any, *args: Any, **kwargs: Any):
        super().__init__(params, *args, **{"capturable": True, **kwargs})


class AdamW(_SyncFree, torch.optim.AdamW):
    """`torch.optim.AdamW` with its step counts on the device, whose `step` takes `found_inf`."""

    def __init__(self, params: Any, *args: Any, **kwargs: Any):
        super().__init__(params, *args, **{"capturable": True, **kwargs})
