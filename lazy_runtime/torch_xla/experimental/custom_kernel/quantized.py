"""Products with weights of 8 bits."""

from __future__ import annotations

import torch

from ..xla_quantized_matmul import quantized_matmul_xla

__all__ = ["quantized_matmul_int8", "quantized_matmul_int8_xla"]


def quantized_matmul_int8(
    x: torch.Tensor,
    w: torch.Tensor,
    scalar: torch.Tensor,
    zero_point: torch.Tensor | None = None,
    quant_block_size: int | None = None,
    quantize_activation: bool = False,
    batch_block_size: int | None = None,
    out_block_size: int | None = None,
    in_block_size: int | None = None,
) -> torch.Tensor:
    """x (w · scalar)ᵀ.

    Args:
        x: floats, [rows, inputs].
        w: int8 [outputs, inputs].
        scalar: floats [outputs].
        zero_point: of each output; none are supported, as in PyTorch/XLA's kernel.
        quant_block_size: none is supported, as there.
        quantize_activation: round each row of x to 8 bits too, so that the product is one of integers.
        batch_block_size, out_block_size, in_block_size: of a kernel.

    Returns:
        [rows, outputs] in the dtype of `x`.

    Raises:
        NotImplementedError: zero points or blocks are given: `experimental.xla_quantized_matmul` has them.
    """
    if zero_point is not None or quant_block_size is not None:
        raise NotImplementedError(
            "quantized_matmul_int8 has no zero points and no blocks: use experimental.xla_quantized_matmul"
        )
    return quantized_matmul_xla(x, w, scalar, quantize_activation=quantize_activation).to(x.dtype)


quantized_matmul_int8_xla = quantized_matmul_int8
