"""Eager mode: every operator runs when it is called, instead of waiting for `lazy_runtime.sync()`."""

from ...common.on_demand import submodules
from .eager import eager_mode, eager_mode_context, is_eager_mode

__all__ = ["eager_mode", "eager_mode_context", "is_eager_mode"]

__getattr__ = submodules(
    __name__,
    "assume_pure",
    "callback",
    "custom_kernel",
    "distributed_checkpoint",
    "dynamo_mark_sharding",
    "fori_loop",
    "gradient_accumulation",
    "gru",
    "mark_pattern_utils",
    "plugins",
    "quantized",
    "scan",
    "scan_layers",
    "splash_attention",
    "spmd_fully_sharded_data_parallel",
    "stablehlo_custom_call",
    "xla_marker",
    "xla_quantized_matmul",
)
