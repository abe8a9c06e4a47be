"""Gradient scaling: what `torch.amp.GradScaler` computes on the device."""

from __future__ import annotations

import jax.numpy as jnp
import torch

from ..indexing.reduction import opmath
from ..registry import op

aten = torch.ops.aten


def _stand_in(x: torch.Tensor) -> torch.Tensor:
    """A small CPU tensor that the CPU kernels accept or refuse for what they would accept or refuse of `x`: they ask
    for its dtype, and whether it has one element.
    """
    return torch.zeros(min(x.numel(), 2), dtype=x.dtype, device="cpu")


def _infer_unscale(grads, found_inf, inv_scale):
    aten._amp_foreach_non_finite_check_and_unscale_.default(
        [_stand_in(grad) for grad in grads], _stand_in(found_inf), _stand_in(inv_scale)
    )
    return [*map(torch.empty_like, grads), torch.empty_like(found_inf)]


@op("aten::_amp_foreach_non_finite_check_and_unscale", infer=_infer_unscale)
def unscale(grads, found_inf, inv_scale):
    """The gradients divided by the scale, and behind them `found_inf`, which becomes 1 if one of them is not finite."""
    inverse = inv_scale.reshape(())
    finite = jnp.array(True)
    unscaled = []
    for grad in grads:
        finite &= jnp.all(jnp.isfinite(grad))
        unscaled.append((opmath(grad) * inverse).astype(grad.dtype))
    return [*unscaled, jnp.where(finite, found_inf, 1)]


def _infer_update(scale, growth_tracker, found_inf, growth_factor, backoff_factor, growth_interval):
    state = [_stand_in(x) for x in (scale, growth_tracker, found_inf)]
    aten._amp_update_scale_.default(*state, growth_factor, backoff_factor, growth_interval)
    return torch.empty_like(scale), torch.empty_like(growth_tracker)


@op("aten::_amp_update_scale", infer=_infer_update)
def update_scale(scale, growth_tracker, found_inf, growth_factor, backoff_factor, growth_interval):
    """The next scale, and how many steps in a row have found only finite gradients."""
    found = found_inf.reshape(()) != 0
    successful = growth_tracker + 1
    due = successful == growth_interval
    wide = scale.astype(jnp.float64)  # the factors are doubles
    grown = (wide * growth_factor).astype(scale.dtype)
    grown = jnp.where(due & jnp.isfinite(grown), grown, scale)
    backed_off = (wide * backoff_factor).astype(scale.dtype)
    return jnp.where(found, backed_off, grown), jnp.where(found | due, 0, successful).astype(growth_tracker.dtype)
