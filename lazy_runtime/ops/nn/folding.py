"""A batch norm of inference within the convolution before it: `lazy_runtime::fold_batch_norm`."""

from __future__ import annotations

import jax
import torch

from ..registry import op

_library = torch.library.Library("lazy_runtime", "FRAGMENT")
_library.define(
    "fold_batch_norm(Tensor filters, Tensor? filters_bias, Tensor? weight, Tensor? bias, Tensor mean, Tensor variance, "
    "float eps) -> (Tensor, Tensor)"
)
_library.impl("fold_batch_norm", lambda filters, *rest: (torch.empty_like(filters), torch.empty_like(rest[4])), "Meta")


@op("lazy_runtime::fold_batch_norm")
def fold_batch_norm(filters, filters_bias, weight, bias, mean, variance, eps):
    """Filters and bias of a convolution that does what it and the batch norm behind it did."""
    scale = jax.lax.rsqrt(variance + eps)
    if weight is not None:
        scale = scale * weight
    shift = -mean * scale if filters_bias is None else (filters_bias - mean) * scale
    if bias is not None:
        shift = shift + bias
    return filters * scale.reshape(-1, *[1] * (filters.ndim - 1)), shift
