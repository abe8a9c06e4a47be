"""What a checkpoint is loaded into."""

from __future__ import annotations

import torch


def prime_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Makes an optimizer that has not stepped yet have its state, so that a checkpoint can be loaded into it. The
    parameters stay as they are.

    Returns:
        the optimizer.
    """
    if optimizer.state:
        return optimizer
    groups = optimizer.param_groups
    parameters = [each for group in groups for each in group["params"] if each.requires_grad]
    before = [group["lr"] for group in groups], [each.grad for each in parameters]
    for group in groups:
        group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], torch.Tensor) else 0.0
    for each in parameters:
        each.grad = torch.zeros_like(each)
    try:
        optimizer.step(closure=None)
    finally:
        for group, rate in zip(groups, before[0], strict=True):
            group["lr"] = rate
        for each, gradient in zip(parameters, before[1], strict=True):
            each.grad = gradient
    return optimizer
