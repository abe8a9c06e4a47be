"""Steps of Adam and SGD whose skipping is decided on the device, as functions."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ....recording import adam


@torch.no_grad()
def adam_step(
    found_inf: torch.Tensor | None,
    state_steps: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    exp_avgs: Sequence[torch.Tensor],
    exp_avg_sqs: Sequence[torch.Tensor],
    max_exp_avg_sqs: Sequence[torch.Tensor],
    *,
    amsgrad: bool,
    beta1: float,
    beta2: float,
    lr: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    use_adamw: bool,
) -> None:
    """A step of Adam (Kingma and Ba, 2015), or of AdamW (Loshchilov and Hutter, 2019), as `torch.optim` has them.

    Args:
        found_inf: one number: nothing is changed if it is not 0. None for a step in any case.
        state_steps: how many steps there were before, one number for each parameter.
        max_exp_avg_sqs: with `amsgrad`.
        use_adamw: the weight decay is AdamW's.
    """
    written = [*state_steps, *params, *exp_avgs, *exp_avg_sqs, *(max_exp_avg_sqs if amsgrad else ())]
    before = [] if found_inf is None else [each.clone() for each in written]
    adam.update(
        params,
        grads,
        exp_avgs,
        exp_avg_sqs,
        max_exp_avg_sqs,
        state_steps,
        amsgrad=amsgrad,
        beta1=beta1,
        beta2=beta2,
        lr=lr,
        weight_decay=weight_decay,
        eps=eps,
        maximize=maximize,
        decoupled_weight_decay=use_adamw,
    )
    if found_inf is not None:  # within one program: a choice between the old and the new value of each number
        skip = found_inf.reshape(()) != 0
        for each, old in zip(written, before, strict=True):
            each.copy_(torch.where(skip, old, each))


@torch.no_grad()
def sgd_step(
    found_inf: torch.Tensor | None,
    state_steps: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    d_p_list: Sequence[torch.Tensor],
    momentum_buffer_list: list[torch.Tensor | None],
    *,
    weight_decay: float,
    momentum: float,
    lr: float,
    dampening: float,
    nesterov: bool,
    maximize: bool,
) -> None:
    """A step of SGD, as `torch.optim` has it.

    Args:
        found_inf: one number: nothing is changed if it is not 0. None for a step in any case.
        state_steps: how many steps there were before, one number for each parameter.
        d_p_list: the gradients.
        momentum_buffer_list: is given a buffer where it has None.
    """
    skip = None if found_inf is None else found_inf.reshape(()) != 0
    for number, (step, param, gradient) in enumerate(zip(state_steps, params, d_p_list, strict=True)):
        update = -gradient if maximize else gradient
        if weight_decay:
            update = update + weight_decay * param
        buffer = momentum_buffer_list[number]
        if buffer is None:
            buffer = momentum_buffer_list[number] = torch.zeros_like(param)
        if momentum:
            moved = torch.where(step == 0, update, momentum * buffer + (1 - dampening) * update)
            update = update + momentum * moved if nesterov else moved
            _set(buffer, moved, skip)
        _set(param, param - lr * update, skip)
        _set(step, step + 1, skip)


def _set(old: torch.Tensor, new: torch.Tensor, skip: torch.Tensor | None) -> None:
    old.copy_(new if skip is None else torch.where(skip, old, new))
