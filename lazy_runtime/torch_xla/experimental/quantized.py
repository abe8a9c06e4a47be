"""`torch.ops.quantized_decomposed` on xla: quantisation as arithmetic on integers and floats.

Torch defines the operators where PT2E's quantisation is imported; this module does that too. Their own definitions run
on xla as they are; the functions here are theirs by PyTorch/XLA's names.
"""

from __future__ import annotations

from typing import Any

import torch

from ...compat.tracing import quantized_decomposed

__all__ = ["xla_dequantize_per_tensor", "xla_quantize_per_channel", "xla_quantize_per_tensor"]

_ = quantized_decomposed.quantized_decomposed_lib  # imported: the operators are there


def xla_quantize_per_tensor(
    input: torch.Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: torch.dtype
) -> torch.Tensor:
    """round(input / scale) + zero_point, between `quant_min` and `quant_max`.

    Args:
        input: floats, of any shape.
        scale, zero_point: of the whole tensor.
        dtype: of the result, an integer type.
    """
    return torch.ops.quantized_decomposed.quantize_per_tensor(input, scale, zero_point, quant_min, quant_max, dtype)


def xla_quantize_per_channel(
    input: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The same with a scale and a zero point for each index of a dimension.

    Args:
        input: floats, of any shape.
        scale, zero_point: vectors, moved to the input's device.
        axis: the dimension.
        dtype: of the result, an integer type.
    """
    return torch.ops.quantized_decomposed.quantize_per_channel(
        input, scale.to(input.device), zero_point.to(input.device), axis, quant_min, quant_max, dtype
    )


def xla_dequantize_per_tensor(
    input: torch.Tensor, scale: Any, zero_point: Any, axis: int, quant_min: int, quant_max: int, dtype: torch.dtype
) -> torch.Tensor:
    """(input - zero_point) · scale as float32.

    Args:
        input: integers, of any shape.
        scale, zero_point: numbers or tensors of one element with `axis` -1, else vectors for that dimension.
        dtype: of the input.
    """
    if axis == -1:
        return torch.ops.quantized_decomposed.dequantize_per_tensor(
            input, float(scale), int(zero_point), quant_min, quant_max, dtype
        )
    return torch.ops.quantized_decomposed.dequantize_per_channel(
        input, scale.to(input.device), zero_point.to(input.device), axis, quant_min, quant_max, dtype
    )
