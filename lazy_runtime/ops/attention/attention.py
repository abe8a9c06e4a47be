"""Scaled dot-product attention as one operator: torch's for the CPU, and ours (`lazy_runtime/recording/attention.py`).

Which kernel computes it stands in `attention_kernels.py`.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import torch

from ...lowering.layout import Permuted, logical
from ..probe import probed
from ..registry import op
from . import shared_heads
from .attention_blocks import Options
from .attention_kernels import ATTENTION, GRADIENT
from .attention_problem import AttentionProblem

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


@op("lazy_runtime::attention", products=True, permuted=True, repeated=True)
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
    "aten::_scaled_dot_product_flash_attention_for_cpu", products=True, permuted=True, repeated=True,
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
    query, mask = logical(query, Permuted), logical(mask)
    key, value = shared_heads.once(key, value)
    problem = AttentionProblem.of(platform, query, key, value, mask, options.is_causal, options.dropout)
    kernel = ATTENTION.choose(problem)
    assert kernel.lower is not None
    return kernel.lower(query, key, value, mask, options)


def _backward(platform, grad, query, key, value, mask, attended, logsumexp, options, wants_mask=False):
    mask = logical(mask)
    problem = AttentionProblem.of(platform, query, key, value, mask, options.is_causal, options.dropout, wants_mask)
    kernel = GRADIENT.choose(problem)
    assert kernel.lower is not None
    return kernel.lower(grad, query, key, value, mask, attended, logsumexp, options, wants_mask)
