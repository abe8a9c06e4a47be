"""Scaled dot-product attention in the form that torch picks on the CPU; elsewhere torch decomposes it."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from .. import precision
from .probe import probed
from .reduction import opmath
from .registry import op


def _scores(query, key, is_causal, attn_mask, scale):
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    wide = _wide(query)
    scores = jnp.einsum(
        "...qd,...kd->...qk", query, key, precision=precision.of(query.dtype), preferred_element_type=wide
    )
    scores = scores * scale
    if is_causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    if attn_mask is not None:
        scores = jnp.where(attn_mask, scores, -jnp.inf) if attn_mask.dtype == bool else scores + attn_mask
    return scores, scale


def _for_each_head(x, query):
    """Keys or values with as many heads as the queries, which may share them in groups."""
    return jnp.repeat(x, query.shape[-3] // x.shape[-3], axis=-3)


def _summed(grad, shape):
    """The gradient of `_for_each_head`; `shape` says how many heads there were."""
    batch, heads = shape[0], shape[1]
    if grad.shape[1] == heads:
        return grad
    return opmath(grad).reshape(batch, heads, -1, *grad.shape[2:]).sum(2).astype(grad.dtype)


def _wide(x):
    return jnp.float32 if x.dtype.itemsize < 4 else x.dtype


# the probe refuses dropout, which torch's kernel does not have: `scaled_dot_product_attention` is composed then
@op(
    "aten::_scaled_dot_product_flash_attention_for_cpu", products=True,
    infer=probed("aten::_scaled_dot_product_flash_attention_for_cpu"),
)  # fmt: skip
def flash_attention_for_cpu(query, key, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
    key, value = _for_each_head(key, query), _for_each_head(value, query)
    scores, _ = _scores(query, key, is_causal, attn_mask, scale)
    logsumexp = jax.nn.logsumexp(scores, axis=-1)
    logsumexp = jnp.where(jnp.isneginf(logsumexp), 0, logsumexp)  # a row masked as a whole attends to nothing
    weights = jnp.exp(scores - logsumexp[..., None]).astype(query.dtype)
    attended = jnp.einsum("...qk,...kd->...qd", weights, value, precision=precision.of(query.dtype))
    return attended, logsumexp


@op("aten::_scaled_dot_product_flash_attention_for_cpu_backward", products=True)
def flash_attention_for_cpu_backward(
    grad, query, key, value, attended, logsumexp, dropout_p, is_causal, *, attn_mask=None, scale=None
):
    exact = precision.of(query.dtype)
    groups = key.shape
    key, value = _for_each_head(key, query), _for_each_head(value, query)
    scores, scale = _scores(query, key, is_causal, attn_mask, scale)
    weights = jnp.exp(scores - logsumexp[..., None])
    narrow = weights.astype(query.dtype)
    grad_value = jnp.einsum("...qk,...qd->...kd", narrow, grad, precision=exact)
    grad_weights = jnp.einsum("...qd,...kd->...qk", grad, value, precision=exact).astype(weights.dtype)
    offset = jnp.sum((grad * attended).astype(weights.dtype), -1, keepdims=True)
    grad_scores = (weights * (grad_weights - offset) * scale).astype(query.dtype)
    grad_query = jnp.einsum("...qk,...kd->...qd", grad_scores, key, precision=exact)
    grad_key = jnp.einsum("...qk,...qd->...kd", grad_scores, query, precision=exact)
    return grad_query, _summed(grad_key, groups), _summed(grad_value, groups)
