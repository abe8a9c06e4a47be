"""Attention on NVIDIA GPUs in cuDNN's fused kernel, as far as jax's documentation says that it takes the arguments."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from .attention_blocks import Options, is_whole


def takes(platform: str, query: Any, key: Any, value: Any, mask: Any, options: Options) -> bool:
    """Whether the kernel computes this attention. Few scores are left to XLA, which fuses them with what is around."""
    if platform != "gpu" or query.dtype not in (jnp.float16, jnp.bfloat16):
        return False
    same = query.ndim == 4 and query.shape[-1] == key.shape[-1] and key.shape == value.shape
    features, queries, keys = query.shape[-1], query.shape[-2], key.shape[-2]
    return (
        same
        and features <= 128
        and features % 8 == 0
        and mask is None
        and options.dropout == 0
        and (queries == keys or not options.is_causal)
        and not is_whole(query.shape, keys)
        and "cuda" in jax.devices(platform)[0].client.platform_version.lower()
    )


def forward(query: Any, key: Any, value: Any, options: Options) -> tuple[Any, Any]:
    """As `attention_blocks.forward`, for which the keys may have fewer heads here."""

    def heads_last(x: Any) -> Any:
        return jnp.swapaxes(x, 1, 2)

    attended, logsumexp = jax.nn.dot_product_attention(
        heads_last(query), heads_last(key), heads_last(value), scale=options.scale, is_causal=options.is_causal,
        implementation="cudnn", return_residual=True,
    )  # fmt: skip
    return heads_last(attended), heads_last(logsumexp).astype(jnp.float32)


def backward(grad: Any, query: Any, key: Any, value: Any, options: Options) -> Any:
    """Gradients of the queries, the keys and the values. jax has the kernel's backward form only behind its forward
    one, which is run again: it is the lesser part.
    """

    def attended(query: Any, key: Any, value: Any) -> Any:
        heads_last = (jnp.swapaxes(x, 1, 2) for x in (query, key, value))
        found = jax.nn.dot_product_attention(
            *heads_last, scale=options.scale, is_causal=options.is_causal, implementation="cudnn"
        )
        return jnp.swapaxes(found, 1, 2)

    return jax.vjp(attended, query, key, value)[1](grad)
