"""Attention on the CPU in torch's own kernel (flash attention), which never holds the scores: by what was measured
(docs/architecture.md) it takes less than half the time of products and softmax in XLA."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from .. import aten_bridge
from ..layout import HeadsLast
from . import widening
from .attention_blocks import Options

_NAME = "aten::_scaled_dot_product_flash_attention_for_cpu"


def takes(platform: str, query: Any, value: Any, dropout: float) -> bool:
    """Whether the kernel computes this attention.

    Args:
        query, value: arrays or tensors.
    """
    return (
        platform == "cpu"
        and dropout == 0
        and query.ndim == 4
        and query.shape[-1] == value.shape[-1]
        and aten_bridge.available()
    )


def forward(query: Any, key: Any, value: Any, mask: Any, options: Options) -> tuple[Any, Any]:
    """As `attention_blocks.forward`, of arrays or `Permuted` ones, as are the results."""
    heads = [HeadsLast.of(x) for x in (query, key, value)]
    arguments = [*heads, 0.0, options.is_causal, _added(mask, query), options.scale]
    wide = jnp.promote_types(query.dtype, jnp.float32)
    batch, rows, number, _ = heads[0].physical.shape
    logsumexp = HeadsLast(jax.ShapeDtypeStruct((batch, rows, number), wide))
    attended, logsumexp = widening.call("cpu", _NAME, arguments, [heads[0], logsumexp])
    return attended.permuted, logsumexp.permuted


def backward(
    grad: Any, query: Any, key: Any, value: Any, mask: Any, attended: Any, logsumexp: Any, options: Options
) -> tuple[Any, Any, Any]:
    """Gradients of the queries, the keys and the values; `forward` says of what."""
    grad, *heads, attended = (HeadsLast.of(x) for x in (grad, query, key, value, attended))
    sums = HeadsLast.of(logsumexp)
    arguments = [grad, *heads, attended, sums, 0.0, options.is_causal, _added(mask, query), options.scale]
    grads = widening.call("cpu", f"{_NAME}_backward", arguments, heads)
    return grads[0].permuted, grads[1].permuted, grads[2].permuted


def _added(mask: Any, query: Any) -> Any:
    """The mask as the kernel adds it to the scores."""
    if mask is None:
        return None
    if mask.dtype == bool:
        mask = jnp.where(mask, 0, -jnp.inf).astype(query.dtype)
    return mask.reshape((1,) * (query.ndim - mask.ndim) + mask.shape)
