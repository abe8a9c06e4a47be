"""Loops that stay in the program: `while_loop` and `fori_loop`. Gradients do not go through them (`scan` has some)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...functions import loops

__all__ = ["fori_loop", "while_loop"]


def fori_loop(
    lower: int | torch.Tensor, upper: int | torch.Tensor, body_fun: Callable[..., Any], *input_value: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Calls `body_fun` of what it gave before, `upper - lower` times.

    Args:
        lower, upper: integers, or integer tensors of one element, which are not read.
        body_fun: `(*values)` to as many tensors of the same shapes and dtypes; to one tensor, if there is one value. It
            is traced once.
        input_value: xla tensors, what the first call gets.

    Returns:
        an int64 0, the number of calls that are left, and what the last call gave.

    Raises:
        ValueError: `upper` is less than `lower`, both of them Python numbers, or there is no value.
        RuntimeError: what `body_fun` gives looks otherwise than what it gets, or it writes to that.
    """
    if not input_value:
        raise ValueError("fori_loop: expected a tensor that goes from call to call, got none")
    if isinstance(lower, int) and isinstance(upper, int) and upper < lower:
        raise ValueError(f"fori_loop: expected an upper bound of at least {lower}, the lower one, got {upper}")
    device = input_value[0].device
    left = torch.as_tensor(upper, device=device).long() - torch.as_tensor(lower, device=device).long()

    def body(left: torch.Tensor, *values: torch.Tensor) -> list[torch.Tensor]:
        found = body_fun(*values)
        return [left - 1, *([found] if isinstance(found, torch.Tensor) else found)]

    with torch.no_grad():
        left = left.clamp(min=0)
        return tuple(loops.while_loop(lambda left, *values: left > 0, body, [left, *input_value]))


def while_loop(
    cond_fn: Callable[..., torch.Tensor],
    body_fn: Callable[..., Sequence[torch.Tensor]],
    carried_inputs: Sequence[torch.Tensor],
    additional_inputs: Sequence[torch.Tensor] | None = None,
) -> tuple[torch.Tensor, ...]:
    """Calls `body_fn` of what it gave before, for as long as `cond_fn` of that is true, within the program.

    Args:
        cond_fn: `(*carried, *additional)` to a tensor of one element. Both functions are traced once.
        body_fn: of the same, to as many tensors as are carried, of the same shapes and dtypes.
        carried_inputs: xla tensors, what the first calls get.
        additional_inputs: xla tensors that all calls get.

    Returns:
        what is carried at the end.

    Raises:
        TypeError: something else than a tensor is carried.
        RuntimeError: what `body_fn` gives looks otherwise than what it gets, or a function writes to that.
    """
    rest = tuple(additional_inputs or ())
    for each in (*carried_inputs, *rest):
        if not isinstance(each, torch.Tensor):
            raise TypeError(f"while_loop: expected tensors, got {each!r}: make it a tensor on xla")

    def condition(*carried: torch.Tensor) -> torch.Tensor:
        return cond_fn(*carried, *rest)

    def body(*carried: torch.Tensor) -> Sequence[torch.Tensor]:
        return list(body_fn(*carried, *rest))

    with torch.no_grad():
        return tuple(loops.while_loop(condition, body, list(carried_inputs)))
