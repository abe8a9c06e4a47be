"""Quantized tensors, of which xla has none: what would make one there says so, and what to do instead."""

from __future__ import annotations

from typing import Any

from ..common import errors
from ..compat.torch import OpOverload
from ..recording import dispatch


@dispatch.handler(
    "aten::quantize_per_tensor", "aten::quantize_per_tensor.tensor_qparams", "aten::quantize_per_tensor.tensors",
    "aten::quantize_per_tensor_dynamic", "aten::quantize_per_channel", "aten::_make_per_tensor_quantized_tensor",
    "aten::_make_per_channel_quantized_tensor",
)  # fmt: skip
def _quantize(func: OpOverload, args: tuple, kwargs: dict[str, Any]) -> Any:
    raise NotImplementedError(errors.no_quantized(func.name()))
