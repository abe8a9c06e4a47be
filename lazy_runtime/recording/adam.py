"""Adam's and AdamW's updates where steps are counted on the device, for learning rates of 0 too.

Torch's own formula for such counts (`capturable`) divides by the step size. From a learning rate of 0, as in a warm-up,
it makes 0 / 0 of what has had no gradient, where the formula for counts on the host leaves the parameter as it is.
Dynamo takes torch's formula for all optimizers, those of CPU tensors too.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..compat.torch import single_tensor_adam


def is_possible() -> bool:
    """Whether this version of torch has the function that is exchanged, with the arguments that are needed."""
    wanted = set(inspect.signature(update).parameters) | {"capturable", "differentiable", "grad_scale", "found_inf"}
    return single_tensor_adam.is_there() and wanted <= set(inspect.signature(single_tensor_adam.get()).parameters)


@functools.cache
def register() -> None:
    """Exchanges torch's function for one that chooses the formula. Idempotent."""
    if is_possible():
        single_tensor_adam.set(_choosing(single_tensor_adam.get()))


#: Whether the calling thread traces an optimizer for a backend of this package, which exchanges this; `bool()` is
#: false.
is_traced_here: Callable[[], bool] = bool


def is_compiled_on_cpu() -> bool:
    """Whether the update is traced for a backend of this package. Dynamo calls this while it traces, once the backend
    has marked it; Dynamo asks that of functions in files that it traces.
    """
    return is_traced_here()


def _choosing(original: Callable[..., None]) -> Callable[..., None]:
    """`original`, or `update` where the counts are where the parameters are. Dynamo traces it."""

    @functools.wraps(original)
    def choose(
        params: list[torch.Tensor],
        grads: list[torch.Tensor],
        exp_avgs: list[torch.Tensor],
        exp_avg_sqs: list[torch.Tensor],
        max_exp_avg_sqs: list[torch.Tensor],
        state_steps: list[torch.Tensor],
        grad_scale: Any,
        found_inf: Any,
        *,
        beta1: Any,
        beta2: Any,
        capturable: bool,
        differentiable: bool,
        has_complex: bool,
        **options: Any,
    ) -> None:
        are_ours = capturable and not differentiable and grad_scale is None and found_inf is None
        are_ours = are_ours and not isinstance(beta1, torch.Tensor) and not isinstance(beta2, torch.Tensor)
        devices = ("xla", "cpu") if are_ours and is_compiled_on_cpu() else ("xla",)
        for tensor in (*state_steps, *params) if are_ours else ():
            are_ours = are_ours and tensor.device.type in devices
        if are_ours:
            moments = exp_avgs, exp_avg_sqs, max_exp_avg_sqs
            update(params, grads, *moments, state_steps, beta1=beta1, beta2=beta2, **options)
            return
        original(
            params,
            grads,
            exp_avgs,
            exp_avg_sqs,
            max_exp_avg_sqs,
            state_steps,
            grad_scale,
            found_inf,
            beta1=beta1,
            beta2=beta2,
            capturable=capturable,
            differentiable=differentiable,
            has_complex=has_complex,
            **options,
        )

    return choose


def update(
    params: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    exp_avgs: Sequence[torch.Tensor],
    exp_avg_sqs: Sequence[torch.Tensor],
    max_exp_avg_sqs: Sequence[torch.Tensor],
    state_steps: Sequence[torch.Tensor],
    *,
    amsgrad: bool,
    beta1: Any,
    beta2: Any,
    lr: float | torch.Tensor,
    weight_decay: float,
    eps: float,
    maximize: bool,
    decoupled_weight_decay: bool,
) -> None:
    """Writes one step of Adam into the parameters and their state (Kingma and Ba, 2015, algorithm 1; AdamW: Loshchilov
    and Hutter, 2019, algorithm 2; amsgrad: Reddi et al., 2018).

    Args:
        params, grads: of any shapes.
        exp_avgs, exp_avg_sqs, max_exp_avg_sqs: the moments, shaped like the parameters; the last for amsgrad.
        state_steps: 0-d counts of the steps before this one.
        beta1, beta2: numbers.
        lr: the learning rate, a tensor of one element or a number.
        others: as in `torch.optim.AdamW`.
    """
    lr = lr.squeeze() if isinstance(lr, torch.Tensor) else lr
    for number, param in enumerate(params):
        grad = -grads[number] if maximize else grads[number]
        first, second, steps = exp_avgs[number], exp_avg_sqs[number], state_steps[number]
        largest = max_exp_avg_sqs[number] if amsgrad else second
        steps += 1
        if weight_decay and decoupled_weight_decay:
            param.mul_(1 - lr * weight_decay)
        elif weight_decay:
            grad = grad.add(param, alpha=weight_decay)
        if param.is_complex():  # two parameters each
            param, grad, first, second, largest = map(torch.view_as_real, (param, grad, first, second, largest))
        first.lerp_(grad, 1 - beta1)
        second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        if amsgrad:
            largest.copy_(torch.maximum(largest, second))
        scale = (largest.sqrt() / (1 - beta2**steps).sqrt()).add_(eps)
        param.sub_(first / scale * (lr / (1 - beta1**steps)))
