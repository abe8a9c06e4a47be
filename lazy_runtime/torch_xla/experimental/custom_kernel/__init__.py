"""PyTorch/XLA's kernels by their names: attention, grouped products, and Pallas kernels of a user's own.

Where no kernel runs, the same is computed by plain operators, which XLA fuses: on the CPU and on GPUs always.
"""

from .flash import (
    DEFAULT_MASK_VALUE,
    FlashAttention,
    fa_custom_backward,
    fa_custom_forward,
    flash_attention,
    flash_attention_xla,
)
from .grouped import GMM, gmm, gmm_backward, gmm_xla, repeat_with_fixed_output_size, tgmm
from .operators import register
from .paged import (
    multi_queries_paged_attention,
    multi_queries_paged_attention_xla,
    paged_attention,
    paged_attention_xla,
    ragged_paged_attention,
    ragged_paged_attention_xla,
)
from .pallas import (
    convert_torch_dtype_to_jax,
    generate_ctx_need_grad,
    make_kernel_from_pallas,
    safe_empty_like,
    to_jax_shape_dtype_struct,
    trace_pallas,
)
from .quantized import quantized_matmul_int8, quantized_matmul_int8_xla

__all__ = [
    "DEFAULT_MASK_VALUE",
    "GMM",
    "FlashAttention",
    "convert_torch_dtype_to_jax",
    "fa_custom_backward",
    "fa_custom_forward",
    "flash_attention",
    "flash_attention_xla",
    "generate_ctx_need_grad",
    "gmm",
    "gmm_backward",
    "gmm_xla",
    "make_kernel_from_pallas",
    "multi_queries_paged_attention",
    "multi_queries_paged_attention_xla",
    "paged_attention",
    "paged_attention_xla",
    "quantized_matmul_int8",
    "quantized_matmul_int8_xla",
    "ragged_paged_attention",
    "ragged_paged_attention_xla",
    "repeat_with_fixed_output_size",
    "safe_empty_like",
    "tgmm",
    "to_jax_shape_dtype_struct",
    "trace_pallas",
]

register()
