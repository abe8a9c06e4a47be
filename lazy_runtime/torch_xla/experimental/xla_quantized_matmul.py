"""Linear layers whose weights have 8 or 4 bits, with a scale for each output or for each block of inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ...functions import jax_function

__all__ = ["XlaQuantizedLinear", "quantized_matmul", "quantized_matmul_xla"]

Tensor = torch.Tensor


def quantized_matmul(
    x: Tensor,
    w: Tensor,
    scaler: Tensor,
    zero_point: Tensor | None = None,
    block_size: int | None = -1,
    int4_weight: bool | None = False,
    quantize_activation: bool | None = False,
) -> Tensor:
    """x times a quantised weight.

    Args:
        x: floats, [..., inputs].
        w: int8 [outputs, inputs], or in blocks [inputs / block, block, outputs].
        scaler: floats [outputs], or in blocks [inputs / block, outputs].
        zero_point: as `scaler`: what stands for 0, in units of the scaled weight; by default 0 does.
        block_size: how many inputs have a scale of their own; -1 for all inputs of an output.
        int4_weight: the weight has values of 4 bits, -8 to 7, in its 8.
        quantize_activation: round each row of x to 8 bits too, so that the product is one of integers. In blocks it
            cannot be had.

    Returns:
        [..., outputs] in the dtype of `x`, of float32 accumulation.

    Raises:
        ValueError: the weight, scale or zero point has another dtype or shape.
        NotImplementedError: `quantize_activation` in blocks.
    """
    blocks = -1 if block_size is None else block_size
    _check(x.shape[-1], w, scaler, zero_point, blocks)
    if blocks != -1:
        if quantize_activation:
            raise NotImplementedError("quantized_matmul: activations are quantised where there are no blocks alone")
        return _of_blocks(x, w, scaler, zero_point, blocks)
    if quantize_activation:
        rounded, scale = _rounded(x)
        found = _integer_product(rounded, w) * scale.float()
    else:
        found = torch.matmul(x, w.to(x.dtype).t())
    found = found * scaler
    if zero_point is not None:
        found = found - x.sum(-1, keepdim=True) * zero_point
    return found.to(x.dtype)


def quantized_matmul_xla(
    x: Tensor,
    w: Tensor,
    scaler: Tensor,
    zero_point: Tensor | None = None,
    block_size: int | None = -1,
    int4_weight: bool | None = False,
    quantize_activation: bool | None = False,
) -> Tensor:
    """`torch.ops.xla.quantized_matmul`: see `quantized_matmul`."""
    return quantized_matmul(x, w, scaler, zero_point, block_size, int4_weight, quantize_activation)


def _of_blocks(x: Tensor, w: Tensor, scaler: Tensor, zero_point: Tensor | None, block: int) -> Tensor:
    parts = x.reshape(*x.shape[:-1], -1, block)
    found = torch.einsum("...bi,bio->...bo", parts, w.to(x.dtype))
    found = torch.einsum("...bo,bo->...o", found, scaler.to(x.dtype))
    if zero_point is not None:
        found = found - torch.matmul(parts.sum(-1), zero_point.to(x.dtype))
    return found.to(x.dtype)


def _rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as int8, the largest absolute value as 127, and the scale of each; a row of zeros stays one."""
    largest = x.abs().amax(-1, keepdim=True)
    scale = torch.where(largest == 0, 1.0, largest / 127)
    return torch.round(x / scale).to(torch.int8), scale


def _integer_product(x: Tensor, w: Tensor) -> Tensor:
    """int8 [..., inputs] by int8 [outputs, inputs]: exact, of int32."""
    if x.device.type != "xla":
        return torch.matmul(x.to(torch.int32), w.to(torch.int32).t()).float()
    return jax_function.call(_dot, [x, w], "integer product", "integer_product")[0].float()


def _dot(x: Any, w: Any) -> list[Any]:
    import jax

    contracted = (((x.ndim - 1,), (1,)), ((), ()))
    return [jax.lax.dot_general(x, w, contracted, preferred_element_type="int32")]


def _check(inputs: int, w: Tensor, scaler: Tensor, zero_point: Tensor | None, block: int) -> None:
    if w.dtype != torch.int8:
        raise ValueError(f"the weight: expected int8, got {w.dtype}")
    if block == -1:
        expected, of_scale = (w.shape[0], inputs), (w.shape[0],)
    elif inputs % block:
        raise ValueError(f"block_size: {block} does not divide {inputs} inputs")
    else:
        expected, of_scale = (inputs // block, block, w.shape[-1]), (inputs // block, w.shape[-1])
    for name, tensor, shape in (
        ("weight", w, expected),
        ("scale", scaler, of_scale),
        ("zero point", zero_point, of_scale),
    ):
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ValueError(f"the {name}: expected shape {list(shape)}, got {list(tensor.shape)}")


class XlaQuantizedLinear(nn.Module):
    """A linear layer without bias, whose weight is int8. It begins with zeros: `load_quantized_weight` fills it.

    Args:
        input_dim, output_dim: how many inputs and outputs it has.
        is_symmetric: there are no zero points.
        block_size: see `quantized_matmul`.
        int4_weight: see `quantized_matmul`.
        quantize_activation: see `quantized_matmul`.

    Raises:
        ValueError: the block does not divide the inputs.
    """

    weight: Tensor
    weight_scaler: Tensor
    zero_point: Tensor | None

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        is_symmetric: bool = True,
        block_size: int = -1,
        int4_weight: bool = False,
        quantize_activation: bool = False,
    ):
        super().__init__()
        if block_size != -1 and input_dim % block_size:
            raise ValueError(f"block_size: {block_size} does not divide {input_dim} inputs")
        self.input_dim, self.output_dim, self.block_size = input_dim, output_dim, block_size
        self.is_symmetric, self.int4_weight, self.quantize_activation = is_symmetric, int4_weight, quantize_activation
        of_scale: tuple[int, ...] = (output_dim,)
        shape: tuple[int, ...] = (output_dim, input_dim)
        if block_size != -1:
            of_scale = (input_dim // block_size, output_dim)
            shape = (input_dim // block_size, block_size, output_dim)
        self.register_buffer("weight", torch.zeros(shape, dtype=torch.int8))
        self.register_buffer("weight_scaler", torch.zeros(of_scale))
        self.register_buffer("zero_point", None if is_symmetric else torch.zeros(of_scale))

    def load_quantized_weight(self, weight: Tensor, weight_scaler: Tensor, zero_point: Tensor | None = None) -> None:
        """Takes a weight, its scales, and zero points where the layer is not symmetric; see `quantized_matmul`.

        Raises:
            ValueError: they have other shapes or dtypes, or there is a zero point too many or too few.
        """
        if (zero_point is None) != self.is_symmetric:
            raise ValueError(
                f"zero_point: expected {'none' if self.is_symmetric else 'one'}, the layer is "
                f"{'' if self.is_symmetric else 'not '}symmetric"
            )
        _check(self.input_dim, weight, weight_scaler, zero_point, self.block_size)
        self.weight, self.weight_scaler, self.zero_point = weight, weight_scaler, zero_point

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] to [..., outputs]."""
        return quantized_matmul(
            x,
            self.weight,
            self.weight_scaler,
            self.zero_point,
            self.block_size,
            self.int4_weight,
            self.quantize_activation,
        )


_library = torch.library.Library("xla", "FRAGMENT")
_library.define(
    "quantized_matmul(Tensor x, Tensor w, Tensor scale, Tensor? zero_point=None, int? block_size=-1, "
    "bool? int4_weight=False, bool? quantize_activation=False) -> Tensor"
)
_library.impl("quantized_matmul", quantized_matmul_xla, "CompositeImplicitAutograd")
