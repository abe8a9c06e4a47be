"""Scaled dot-product attention as one operator: torch's for the CPU, and ours (`lazy_runtime/recording/attention.py`).

Where torch's kernel (`attention_aten.py`) or cuDNN's (`attention_cudnn.py`) does not take it, it is computed in blocks
(`attention_blocks.py`).
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import torch

from ...lowering.layout import logical
from ..indexing.reduction import opmath
from ..probe import probed
from ..registry import op
from . import attention_aten, attention_blocks, attention_cudnn
from .attention_blocks import Options

_library = torch.library.Library("lazy_runtime", "FRAGMENT")
_library.define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor? seed, float dropout_p, bool is_causal, "
    "float? scale) -> (Tensor output, Tensor logsumexp)"
)
_library.define(
    "attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor? seed, "
    "Tensor output, Tensor logsumexp, float dropout_p, bool is_causal, float? scale, bool wants_mask) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)


def _attention_meta(query: Any, key: Any, value: Any, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    wide = torch.float32 if query.dtype.itemsize < 4 else query.dtype
    attended = query.new_empty((*query.shape[:-1], value.shape[-1]))
    return attended, query.new_empty(query.shape[:-1], dtype=wide)


def _attention_backward_meta(grad: Any, query: Any, key: Any, value: Any, mask: Any, *rest: Any) -> tuple[Any, ...]:
    grad_mask = mask.new_empty(mask.shape) if rest[-1] else query.new_empty(0)
    return *(x.new_empty(x.shape) for x in (query, key, value)), grad_mask


_library.impl("attention", _attention_meta, "Meta")
_library.impl("attention_backward", _attention_backward_meta, "Meta")


@op("lazy_runtime::attention", products=True, permuted=True)
def attention(query, key, value, mask, seed, dropout_p, is_causal, scale, *, input_spec):
    options = _options(query, is_causal, scale, dropout_p, seed)
    return _forward(input_spec.device.platform, query, key, value, mask, options)


@op("lazy_runtime::attention_backward", products=True, permuted=True)
def attention_backward(
    grad, query, key, value, mask, seed, attended, logsumexp, dropout_p, is_causal, scale, wants_mask, *, input_spec
):
    options = _options(query, is_causal, scale, dropout_p, seed)
    platform = input_spec.device.platform
    *grads, grad_mask = _backward(platform, grad, query, key, value, mask, attended, logsumexp, options, wants_mask)
    return *grads, jnp.zeros(0, query.dtype) if grad_mask is None else grad_mask


# the probe refuses dropout, which torch's kernel does not have: `scaled_dot_product_attention` is composed then
@op(
    "aten::_scaled_dot_product_flash_attention_for_cpu", products=True, permuted=True,
    infer=probed("aten::_scaled_dot_product_flash_attention_for_cpu"),
)  # fmt: skip
def flash_attention_for_cpu(
    query, key, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None, input_spec
):
    return _forward(input_spec.device.platform, query, key, value, attn_mask, _options(query, is_causal, scale))


@op("aten::_scaled_dot_product_flash_attention_for_cpu_backward", products=True, permuted=True)
def flash_attention_for_cpu_backward(
    grad, query, key, value, attended, logsumexp, dropout_p, is_causal, *, attn_mask=None, scale=None, input_spec
):
    options, platform = _options(query, is_causal, scale), input_spec.device.platform
    return _backward(platform, grad, query, key, value, attn_mask, attended, logsumexp, options)[:3]


def _options(query, is_causal, scale, dropout_p=0.0, seed=None):
    return Options(1 / math.sqrt(query.shape[-1]) if scale is None else scale, is_causal, dropout_p, seed)


def _forward(platform, query, key, value, mask, options):
    mask = logical(mask)
    if attention_aten.takes(platform, query, value, options.dropout):
        return attention_aten.forward(query, _for_each_head(key, query), _for_each_head(value, query), mask, options)
    query, key, value = logical([query, key, value])
    if attention_cudnn.takes(platform, query, key, value, mask, options):
        return attention_cudnn.forward(query, key, value, options)
    return attention_blocks.forward(query, _for_each_head(key, query), _for_each_head(value, query), mask, options)


def _backward(platform, grad, query, key, value, mask, attended, logsumexp, options, wants_mask=False):
    mask, heads = logical(mask), key.shape
    if attention_aten.takes(platform, query, value, options.dropout) and not wants_mask:
        key, value = _for_each_head(key, query), _for_each_head(value, query)
        grads = *attention_aten.backward(grad, query, key, value, mask, attended, logsumexp, options), None
    else:
        grad, query, key, value, attended, logsumexp = logical([grad, query, key, value, attended, logsumexp])
        if attention_cudnn.takes(platform, query, key, value, mask, options):
            return *attention_cudnn.backward(grad, query, key, value, options), None
        key, value = _for_each_head(key, query), _for_each_head(value, query)
        grads = attention_blocks.backward(grad, query, key, value, mask, attended, logsumexp, options, wants_mask)
    return grads[0], _summed(grads[1], heads), _summed(grads[2], heads), grads[3]


def _for_each_head(x, query):
    """Keys or values with as many heads as the queries, which may share them in groups."""
    if x.ndim < 3 or x.shape[-3] == query.shape[-3]:
        return x
    return jnp.repeat(logical(x), query.shape[-3] // x.shape[-3], axis=-3)


def _summed(grad, shape):
    """The gradient of `_for_each_head`; `shape` says how many heads there were."""
    if len(shape) < 3 or grad.shape[-3] == shape[-3]:
        return grad
    groups = opmath(logical(grad)).reshape(*shape[:-2], -1, *grad.shape[-2:])
    return groups.sum(-3).astype(grad.dtype)
