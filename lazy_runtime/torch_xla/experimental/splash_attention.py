"""`splash_attention`: attention with local windows and segments, by plain operators where no kernel runs."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

import torch

from ...functions import jax_function
from ..distributed.spmd import Mesh, mark_sharding_with_gradients

__all__ = [
    "SplashAttention",
    "SplashAttentionConfig",
    "sa_custom_backward",
    "sa_custom_forward",
    "splash_attention",
    "splash_attention_jax_wrapper",
    "tpu_splash_attention_jax_call_wrapper",
]

Tensor = torch.Tensor


@dataclass(frozen=True)
class SplashAttentionConfig:
    """How the attention is computed.

    Attributes:
        sa_block_q, sa_block_kv, sa_block_kv_compute, sa_block_q_dkv, sa_block_kv_dkv, sa_block_kv_dkv_compute,
            sa_block_q_dq, sa_block_kv_dq, sa_use_fused_bwd_kernel, sa_q_layout, sa_k_layout, sa_v_layout: of a kernel;
            without meaning where none runs.
        mesh: `str(mesh)`; None where nothing is sharded.
        qkv_partition_spec: how q, k, v and the result are cut over it.
        segment_ids_partition_spec: how the segments are cut.
        attentiontype_local_sliding: a query sees the keys that are at most `slide_window_size` places away alone.
        slide_window_size: how many that are, to each side.
    """

    sa_block_q: int = 2048
    sa_block_kv: int = 2048
    sa_block_kv_compute: int = 2048
    sa_block_q_dkv: int = 2048
    sa_block_kv_dkv: int = 2048
    sa_block_kv_dkv_compute: int = 2048
    sa_block_q_dq: int = 2048
    sa_block_kv_dq: int = 2048
    sa_use_fused_bwd_kernel: bool = True
    sa_q_layout: str = "HEAD_DIM_MINOR"
    sa_k_layout: str = "HEAD_DIM_MINOR"
    sa_v_layout: str = "HEAD_DIM_MINOR"
    mesh: str | None = None
    qkv_partition_spec: Any = (("data", "fsdp"), None, None, None)
    segment_ids_partition_spec: Any = (("data", "fsdp"), None)
    attentiontype_local_sliding: bool = False
    slide_window_size: int | None = None

    def to_json(self) -> str:
        """As text."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, data: str) -> SplashAttentionConfig:
        """Undoes `to_json`."""
        return cls(**{name: _tuples(value) for name, value in json.loads(data).items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def splash_attention_jax_wrapper(
    query: Any,
    key: Any,
    value: Any,
    decoder_segment_ids: Any,
    causal: bool,
    config: SplashAttentionConfig,
    attn_logits_soft_cap: float | None,
) -> Any:
    """The attention of jax arrays: softmax(c tanh(q kᵀ / c) + mask) v.

    Args:
        query: [batch, heads, queries, width], scaled by the caller.
        key, value: [batch, key heads, keys, width]; the key heads divide the heads.
        decoder_segment_ids: [batch, keys], or None; a query sees the keys of its own segment.
        causal: a query sees no later key.
        config: says the window.
        attn_logits_soft_cap: `c`, or None.

    Returns:
        [batch, heads, queries, width] in the dtype of `query`.

    Raises:
        ValueError: a local window without a size.
    """
    import jax
    import jax.numpy as jnp

    groups = query.shape[1] // key.shape[1]
    key, value = (jnp.repeat(x, groups, axis=1) for x in (key, value))
    logits = jnp.einsum("bhqd,bhkd->bhqk", query, key, preferred_element_type=jnp.float32)
    if attn_logits_soft_cap is not None:
        logits = attn_logits_soft_cap * jnp.tanh(logits / attn_logits_soft_cap)
    rows, columns = jnp.arange(query.shape[2])[:, None], jnp.arange(key.shape[2])[None]
    seen = columns <= rows if causal else jnp.ones((query.shape[2], key.shape[2]), bool)
    if config.attentiontype_local_sliding:
        if config.slide_window_size is None:
            raise ValueError("splash_attention: attentiontype_local_sliding needs slide_window_size")
        seen = seen & (jnp.abs(rows - columns) <= config.slide_window_size)
    seen = jnp.broadcast_to(seen, logits.shape)
    if decoder_segment_ids is not None:
        same = decoder_segment_ids[:, None, :, None] == decoder_segment_ids[:, None, None, :]
        seen = seen & same
    weights = jax.nn.softmax(jnp.where(seen, logits, -0.7 * jnp.finfo(jnp.float32).max), axis=-1)
    return jnp.einsum("bhqk,bhkd->bhqd", weights.astype(value.dtype), value).astype(query.dtype)


def tpu_splash_attention_jax_call_wrapper(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    config: SplashAttentionConfig,
    decoder_segment_ids: Tensor | None,
    causal: bool,
    attn_logits_soft_cap: float | None = None,
    is_forward: bool = True,
    grad_output: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The attention of xla tensors, or its gradients.

    Args:
        is_forward: otherwise the gradients of query, key and value are given.
        grad_output: the result's gradient, for them.

    Returns:
        the result and two times None, or the three gradients.
    """
    segments = [] if decoder_segment_ids is None else [decoder_segment_ids]

    def forward(q: Any, k: Any, v: Any, *ids: Any) -> Any:
        return splash_attention_jax_wrapper(q, k, v, ids[0] if ids else None, causal, config, attn_logits_soft_cap)

    def backward(gradient: Any, q: Any, k: Any, v: Any, *ids: Any) -> Any:
        import jax

        return jax.vjp(lambda *qkv: forward(*qkv, *ids), q, k, v)[1](gradient)

    tensors = [_cut(x, config, config.qkv_partition_spec) for x in (query, key, value)]
    tensors += [_cut(x, config, config.segment_ids_partition_spec) for x in segments]
    what = (config, causal, attn_logits_soft_cap)
    if is_forward:
        (found,) = jax_function.call(lambda *arrays: [forward(*arrays)], tensors, ("splash", *what), "splash_attention")
        return _cut(found, config, config.qkv_partition_spec), None, None
    assert grad_output is not None
    made = jax_function.call(backward, [grad_output, *tensors], ("splash_backward", *what), "splash_attention_backward")
    return made[0], made[1], made[2]


def _cut(x: Tensor, config: SplashAttentionConfig, spec: Any) -> Tensor:
    mesh = None if config.mesh is None else Mesh.from_str(config.mesh)
    return x if mesh is None else mark_sharding_with_gradients(x, mesh, spec)


def sa_custom_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    config: str,
    decoder_segment_ids: Tensor | None,
    causal: bool,
    attn_logits_soft_cap: float | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The forward pass of `splash_attention`; see `tpu_splash_attention_jax_call_wrapper`."""
    return tpu_splash_attention_jax_call_wrapper(
        q, k, v, SplashAttentionConfig.from_json(config), decoder_segment_ids, causal, attn_logits_soft_cap
    )


def sa_custom_backward(
    grad_output: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    config: str,
    decoder_segment_ids: Tensor | None,
    causal: bool,
    attn_logits_soft_cap: float | None,
) -> tuple[Any, Any, Any]:
    """Its backward pass: the gradients of q, k and v."""
    of = SplashAttentionConfig.from_json(config)
    return tpu_splash_attention_jax_call_wrapper(
        q, k, v, of, decoder_segment_ids, causal, attn_logits_soft_cap, False, grad_output
    )


class SplashAttention(torch.autograd.Function):
    """What `splash_attention` applies."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        config: str,
        decoder_segment_ids: Tensor | None,
        causal: bool,
        attn_logits_soft_cap: float | None,
    ) -> Tensor:
        ctx.save_for_backward(q, k, v, decoder_segment_ids)
        ctx.options = config, causal, attn_logits_soft_cap
        return sa_custom_forward(q, k, v, config, decoder_segment_ids, causal, attn_logits_soft_cap)[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        q, k, v, ids = ctx.saved_tensors
        config, causal, cap = ctx.options
        return *sa_custom_backward(gradients[0], q, k, v, config, ids, causal, cap), None, None, None, None


def splash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    config: str,
    decoder_segment_ids: Tensor | None = None,
    causal: bool = True,
    attn_logits_soft_cap: float | None = None,
) -> Tensor:
    """Attention with gradients of q, k and v; see `splash_attention_jax_wrapper`.

    Args:
        config: `SplashAttentionConfig.to_json()`.
    """
    return SplashAttention.apply(q, k, v, config, decoder_segment_ids, causal, attn_logits_soft_cap)  # type: ignore
