"""`gradient_accumulation`: the gradients of several batches as one loop of the program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...functions import loops
from .scan_builder import XlaBuildHelper

__all__ = ["GradientAccumulationContext", "XlaBuildHelper", "gradient_accumulation"]


@dataclass(frozen=True)
class GradientAccumulationContext:
    """What a call of `gradient_accumulation` consists of.

    Attributes:
        num_gradient_steps: how many batches there are.
        num_iterable_tensors: how many tensors a batch has.
        num_carried_tensors: how many tensors go from batch to batch.
    """

    num_gradient_steps: int
    num_iterable_tensors: int
    num_carried_tensors: int


def gradient_accumulation(
    train_step: Callable[..., Any],
    iterable_tensors: Sequence[torch.Tensor],
    model: torch.nn.Module,
    *carried_tensors: torch.Tensor,
) -> Any:
    """Runs `train_step` and its backward pass for each batch, and adds the gradients of the mean loss to those of the
    model's parameters.

    Args:
        train_step: `(*batch, *carried)` to the loss, or to the loss and what is carried on. It is traced once, calls no
            backward itself, and must not write to its arguments.
        iterable_tensors: xla tensors whose first dimension are the batches.
        model: whose parameters get gradients.
        carried_tensors: what the first call gets; each call gives tensors of the same shapes and dtypes.

    Returns:
        the mean loss, a float32 scalar; with carried tensors a tuple of it and of them.

    Raises:
        ValueError: there is no batch, or the tensors have several first sizes.
        AssertionError: `train_step` writes to its arguments.
        RuntimeError: what is carried on looks otherwise than before.
    """
    if not iterable_tensors:
        raise ValueError("gradient_accumulation: iterable_tensors has no tensor")
    for number, tensor in enumerate(iterable_tensors):
        if not isinstance(tensor, torch.Tensor) or not tensor.dim() or not tensor.numel():
            raise ValueError(f"gradient_accumulation: iterable_tensors[{number}] is no tensor of batches: {tensor!r}")
        if tensor.shape[0] != iterable_tensors[0].shape[0]:
            raise ValueError(
                f"gradient_accumulation: iterable_tensors[{number}] has {tensor.shape[0]} batches, the first tensor "
                f"{iterable_tensors[0].shape[0]}"
            )
    context = GradientAccumulationContext(iterable_tensors[0].shape[0], len(iterable_tensors), len(carried_tensors))
    parameters = [each for each in model.parameters() if each.requires_grad]
    loss, gradients, carried = _loop(context, train_step, iterable_tensors, parameters, carried_tensors)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is None:  # the loss does not depend on it
            continue
        if parameter.grad is None:
            parameter.grad = gradient
        else:
            parameter.grad.add_(gradient)
    return (loss, *carried) if carried_tensors else loss


def _loop(
    context: GradientAccumulationContext,
    train_step: Callable[..., Any],
    iterable_tensors: Sequence[torch.Tensor],
    parameters: Sequence[torch.nn.Parameter],
    carried_tensors: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, list[torch.Tensor | None], list[torch.Tensor]]:
    first = 1 + len(parameters)
    is_used: list[bool] = []

    def turn(*arguments: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        carries = first + context.num_carried_tensors
        loss, *gradients = arguments[:first]
        carried, batch = arguments[first:carries], arguments[carries:]
        versions = [each._version for each in (*batch, *carried)]
        with torch.enable_grad():
            found = train_step(*batch, *carried)
            new_loss, *new_carried = (found,) if isinstance(found, torch.Tensor) else found
            if versions != [each._version for each in (*batch, *carried)]:
                raise AssertionError("gradient_accumulation: train_step writes to its arguments: return new tensors")
            mean = new_loss / context.num_gradient_steps
            new = torch.autograd.grad(mean, parameters, allow_unused=True) if parameters else ()

        is_used[:] = [each is not None for each in new]
        added = [old if each is None else old + each for old, each in zip(gradients, new, strict=True)]
        return [loss + mean.detach().float(), *added, *(each.detach() for each in new_carried)], []

    with torch.no_grad():
        loss = torch.zeros((), device=iterable_tensors[0].device)
        zeros = [torch.zeros_like(each) for each in parameters]
        given = [each.detach() for each in iterable_tensors]
        found, _ = loops.scan(turn, [loss, *zeros, *carried_tensors], given)
    gradients = [each if used else None for each, used in zip(found[1:first], is_used, strict=True)]
    return found[0], gradients, found[first:]
