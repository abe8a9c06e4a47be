"""Attention on the CPU in torch's own kernel (flash attention), which never holds the scores, or forward in ours
(`attention_native.py`): by what was measured (docs/measurements.md) torch's takes less than half the time of products
and softmax in XLA.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ...lowering import aten_bridge
from ...lowering.layout import HeadsLast, Permuted, Strided
from ..linalg import bfloat16_upcast
from . import attention_native
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
    added = _added(mask, query)
    heads = [*map(_lying, (query, key, value))]
    if attention_native.takes(bfloat16_upcast.described("cpu", query), key.shape[2], added):
        name, arguments = attention_native.NAME, [*heads, added, options.is_causal, options.scale]
    else:
        name, arguments = _NAME, [*heads, 0.0, options.is_causal, added, options.scale]
    wide = jnp.promote_types(query.dtype, jnp.float32)
    attended = _described(query)
    logsumexp = HeadsLast(jax.ShapeDtypeStruct(attended.physical.shape[:-1], wide))
    attended, logsumexp = bfloat16_upcast.call("cpu", name, arguments, [attended, logsumexp])
    return attended.permuted, logsumexp.permuted


def backward(
    grad: Any, query: Any, key: Any, value: Any, mask: Any, attended: Any, logsumexp: Any, options: Options
) -> tuple[Any, Any, Any]:
    """Gradients of the queries, the keys and the values; `forward` says of what."""
    heads = query, key, value
    arguments = [
        *map(_lying, (grad, *heads, attended, logsumexp)), 0.0, options.is_causal, _added(mask, query), options.scale
    ]  # fmt: skip
    grads = bfloat16_upcast.call("cpu", f"{_NAME}_backward", arguments, [*map(_described, heads)])
    return grads[0].permuted, grads[1].permuted, grads[2].permuted


def _lying(x: Any) -> HeadsLast | Strided:
    """A value as the kernel takes it: where it lies, if it need not be changed first, and has all of a head's features
    side by side.
    """
    strided = x.strided if isinstance(x, Permuted) and not bfloat16_upcast.is_wanted("cpu", x.dtype) else None
    return strided if strided is not None and strided.strides[-1] == 1 else HeadsLast.of(x)


def _described(like: Any) -> HeadsLast:
    batch, heads, rows, features = like.shape
    return HeadsLast(jax.ShapeDtypeStruct((batch, rows, heads, features), like.dtype))


def _added(mask: Any, query: Any) -> Any:
    """The mask as the kernel adds it to the scores."""
    if mask is None:
        return None
    if mask.dtype == bool:
        mask = jnp.where(mask, 0, -jnp.inf).astype(query.dtype)
    return mask.reshape((1,) * (query.ndim - mask.ndim) + mask.shape)
