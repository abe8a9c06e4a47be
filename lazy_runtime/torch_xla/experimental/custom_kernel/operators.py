"""`torch.ops.xla`: the kernels as operators of torch, which every trace takes apart into what they are made of."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from . import flash, grouped, paged, quantized

_OPERATORS: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("flash_attention(Tensor q, Tensor k, Tensor v, bool casual=False) -> Tensor", flash.flash_attention_xla),
    (
        "paged_attention(Tensor q, Tensor k_pages, Tensor v_pages, Tensor lengths, Tensor page_indices, "
        "int pages_per_compute_block, str? megacore_mode=None, float? attn_logits_soft_cap=None) -> Tensor",
        paged.paged_attention_xla,
    ),
    (
        "multi_queries_paged_attention(Tensor q, Tensor k_pages, Tensor v_pages, Tensor lengths, Tensor page_indices, "
        "Tensor effective_q_lens, int num_kv_pages_per_compute_block, int num_queries_per_compute_block, "
        "bool use_kernel, float? attn_logits_soft_cap=None) -> Tensor",
        paged.multi_queries_paged_attention_xla,
    ),
    (
        "ragged_paged_attention(Tensor q, Tensor kv_pages, Tensor kv_lens, Tensor page_indices, Tensor cu_q_lens, "
        "Tensor num_seqs, float sm_scale=1, int? sliding_window=None, float? soft_cap=None, float? mask_value=None, "
        "float? k_scale=None, float? v_scale=None, bool use_kernel=True, int? num_kv_pages_per_block=None, "
        "int? num_queries_per_block=None, int? vmem_limit_bytes=None) -> Tensor",
        paged.ragged_paged_attention_xla,
    ),
    ("gmm(Tensor lhs, Tensor rhs, Tensor group_sizes, int[]? tiling=None) -> Tensor", grouped.gmm_xla),
    (
        "quantized_matmul_int8(Tensor x, Tensor w, Tensor scalar, Tensor? zero_point=None, "
        "int? quant_block_size=None, bool quantize_activation=False, int? batch_block_size=None, "
        "int? out_block_size=None, int? in_block_size=None) -> Tensor",
        quantized.quantized_matmul_int8_xla,
    ),
)

_library: torch.library.Library | None = None


@functools.cache
def register() -> None:
    """Defines the operators. Idempotent."""
    global _library
    _library = torch.library.Library("xla", "FRAGMENT")
    for schema, function in _OPERATORS:
        _library.define(schema)
        _library.impl(schema.partition("(")[0], function, "CompositeImplicitAutograd")
