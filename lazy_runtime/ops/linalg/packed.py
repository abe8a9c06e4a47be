"""Convolutions and products with weights that are kept in the order in which oneDNN's kernels read them.

The kernels bring a weight into that order at each call, and XLA's products do something alike; of a layer with many
weights and few pixels or rows, that is up to two thirds of the time. What keeps a weight from call to call
(`openxla_backend/inference/constant_hoisting.py`) packs it once. The order is oneDNN's choice, by the processor, the
sizes and the number of threads; to XLA it is so many bytes, which say themselves how they lie.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch

from ...cache import disk_key
from ...cache.disk_notes import Notes
from ...compat.torch import disable_current_modes
from ...compat.tracing import suggest_memory_format
from ...ir.spec import TensorSpec
from ...lowering import aten_bridge
from ...lowering.layout import ChannelsLast, Packed, Part, logical, physical
from .. import kernels
from ..kernels import Refused, Verdict
from ..registry import arguments, op
from . import bfloat16_upcast

_mkldnn = torch.ops.mkldnn

_library = torch.library.Library("lazy_runtime", "FRAGMENT")
_library.define(
    "pack_filters(Tensor filters, int room, int[] image_size, int[] stride, int[] padding, int[] dilation, int groups)"
    " -> Tensor"
)
_library.define(
    "packed_convolution(Tensor image, Tensor packed, Tensor? bias, int[] size, int[] stride, int[] padding, "
    "int[] dilation, int groups, Tensor? other=None, str? then=None, float[] numbers=[], "
    "ScalarType? weight_dtype=None) -> Tensor"
)
_library.define("part(Tensor buffer, int start, int[] size) -> Tensor")
_library.define("pack_matrix(Tensor matrix, int room, int rows) -> Tensor")
_library.define(
    "packed_linear(Tensor x, Tensor packed, Tensor? bias, int[] size, Tensor? other=None, str? then=None, "
    "float[] numbers=[], ScalarType? weight_dtype=None) -> Tensor"
)


def available(platform: str, dtype: torch.dtype) -> bool:
    """Whether weights of this dtype can be packed on this platform."""
    return bool(accepts(platform, str(dtype).removeprefix("torch.")))


def accepts(platform: str, dtype: str) -> Verdict:
    """Whether oneDNN packs weights of this dtype on this platform, with the reason where it does not."""
    has_order = torch.backends.mkldnn.is_available() and hasattr(_mkldnn, "_get_mkldnn_serialized_md")
    return (
        kernels.on_cpu(platform)
        and (has_order or Refused("this torch has no oneDNN, or does not say how its weights lie"))
        and (dtype in ("float32", "bfloat16") or Refused(f"oneDNN packs float32 and bfloat16, not {dtype}"))
        and (
            dtype == "float32"
            or _mkldnn._is_mkldnn_bf16_supported()
            or Refused("oneDNN has no bfloat16 on this processor")
        )
    )


def available_at_all(platform: str) -> Verdict:
    """Whether weights of float32, at least, can be packed on this platform."""
    return accepts(platform, "float32")


# ---- the room that a weight takes

#: Only packing a weight tells: of a model with 100 MB of weights that is a tenth of a second.
rooms = Notes("rooms", disk_key.kernels)


@functools.cache
def _filter_bytes(size: tuple[int, ...], dtype: torch.dtype, image_size: tuple[int, ...], *geometry: Any) -> int:
    stride, padding, dilation, groups = geometry

    def pack() -> int:
        with _plain():
            filters = torch.empty(size, dtype=dtype)
            return _bytes(_mkldnn._reorder_convolution_weight(filters, padding, stride, dilation, groups, image_size))

    return rooms.find(f"filters {size} {dtype} {image_size} {geometry}", pack)


@functools.cache
def _matrix_bytes(size: tuple[int, ...], dtype: torch.dtype, rows: int) -> int:
    def pack() -> int:
        with _plain():
            return _bytes(_mkldnn._reorder_linear_weight(torch.empty(size, dtype=dtype), rows))

    return rooms.find(f"matrix {size} {dtype} {rows}", pack)


@contextlib.contextmanager
def _plain() -> Iterator[None]:
    """Tensors on the CPU, whatever the caller is tracing or inferring."""
    with torch.no_grad(), disable_current_modes(), torch.device("cpu"):
        yield


def _bytes(packed: torch.Tensor) -> int:
    """With oneDNN's description of the order in front (`Packed` in native/packed_weight.h)."""
    order = _mkldnn._get_mkldnn_serialized_md(packed).numel()
    return _aligned(8 + order) + _mkldnn._nbytes(packed)


def _aligned(size: int) -> int:
    """As many bytes or some more, so that what lies behind them begins as XLA's buffers do."""
    return -(-size // 64) * 64


def _key(*values: Any) -> tuple[Any, ...]:
    return tuple(tuple(x) if isinstance(x, Sequence) else x for x in values)


def packed_filters(filters: torch.Tensor, image_size: Sequence[int], *geometry: Any) -> int:
    """`pack_filters`' room: how many bytes filters take when they are packed for images of this size.

    Args:
        filters: of any device.
        geometry: stride, padding, dilation and groups.
    """
    return _aligned(_filter_bytes(*_key(filters.shape, filters.dtype, image_size, *geometry)))


def packed_matrix(matrix: torch.Tensor, rows: int) -> int:
    """`pack_matrix`' room: how many bytes a matrix takes when it is packed for products with so many rows."""
    return _aligned(_matrix_bytes(tuple(matrix.shape), matrix.dtype, rows))


def room(weight: torch.Tensor, arguments: tuple[Any, ...]) -> list[int]:
    """The sizes of a packed weight, for a kernel's row: so many bytes as the operator that packs it is told first."""
    return [arguments[0]]


# ---- the operators

#: Activations that a packed convolution or product may end with, as torch's kernels compute them in place.
IN_PLACE = {
    getattr(torch.ops.aten, name).default: name
    for name in ("elu", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "relu", "sigmoid", "silu", "tanh")
}


def _infer_packed(weight, room, *_):
    return torch.empty(room, dtype=torch.uint8, device="meta")


def infer_convolution(image, packed, bias, size, stride, padding, dilation, groups, *_, **__):
    space = [
        (there + 2 * padded - step * (kernel - 1) - 1) // every + 1
        for there, kernel, every, padded, step in zip(image.shape[2:], size[2:], stride, padding, dilation, strict=True)
    ]
    order = suggest_memory_format(image)
    shape = [image.shape[0], size[0], *space]
    return torch.empty(shape, dtype=image.dtype, device=image.device, memory_format=order)


_library.impl("part", lambda buffer, start, size: buffer.new_empty(size), "Meta")
_library.impl("pack_filters", _infer_packed, "Meta")
_library.impl("pack_matrix", _infer_packed, "Meta")
_library.impl("packed_convolution", infer_convolution, "Meta")
_library.impl("packed_linear", lambda x, packed, bias, size, *_, **__: x.new_empty(x.shape[0], size[0]), "Meta")


@op("lazy_runtime::pack_filters")
def pack_filters(filters, room, image_size, stride, padding, dilation, groups, *, input_spec):
    operands = [filters, padding, stride, dilation, groups, image_size]
    return _pack("_reorder_convolution_weight", operands, input_spec, room)


@op("lazy_runtime::pack_matrix")
def pack_matrix(matrix, room, rows, *, input_spec):
    return _pack("_reorder_linear_weight", [matrix, rows], input_spec, room)


def _pack(name: str, operands: list[Any], weight: TensorSpec, room: int) -> Any:
    like = Packed(jax.ShapeDtypeStruct((room,), jnp.uint8), weight.dtype, weight.shape)
    (packed,) = aten_bridge.call(f"mkldnn::{name}", operands, [like])
    return packed


@op("lazy_runtime::part")
def part(buffer, start, size):
    return Part(buffer, start, size)


@op("lazy_runtime::packed_convolution", channels_last=True, parts=True, products=True)
def packed_convolution(
    image,
    packed,
    bias,
    size,
    stride,
    padding,
    dilation,
    groups,
    other=None,
    then=None,
    numbers=(),
    weight_dtype=None,
    *,
    input_spec,
    out,
):
    """A convolution, plus `other`, and `then` an activation of `IN_PLACE`, with what it takes beside the image;
    computed in `weight_dtype`, the image's if it is None.
    """
    like = ChannelsLast.described(out.shape, image.dtype)
    operands = [
        ChannelsLast(physical(image)),
        *([] if other is None else [ChannelsLast(physical(other))]),
        Packed.of(packed, weight_dtype or input_spec.dtype, size),
        bias,
        padding,
        stride,
        dilation,
        groups,
    ]
    if other is None:
        name, operands = "mkldnn::_convolution_pointwise", [*operands, "none", [], None]
    else:
        name, operands = "mkldnn::_convolution_pointwise.binary", [*operands, "add", None, None, [], None]
    return _call(name, operands, like, ending(then, numbers), weight_dtype)


@op("lazy_runtime::packed_linear", parts=True, products=True)
def packed_linear(x, packed, bias, size, other=None, then=None, numbers=(), weight_dtype=None, *, input_spec):
    """A product, plus `other`, and `then` an activation of `IN_PLACE`; computed in `weight_dtype`, x's if it is
    None.
    """
    like = jax.ShapeDtypeStruct((x.shape[0], size[0]), x.dtype)
    weight = Packed.of(packed, weight_dtype or input_spec.dtype, size)
    if other is None:
        name, operands = "mkldnn::_linear_pointwise", [logical(x), weight, bias, "none", [], None]
    else:
        name, operands = "mkldnn::_linear_pointwise.binary", [logical(x), logical(other), weight, bias, "add"]
    return _call(name, operands, like, ending(then, numbers), weight_dtype)


def _call(
    name: str, operands: list[Any], like: Any, then: list[tuple[str, list[Any]]], weight_dtype: torch.dtype | None
) -> Any:
    call = aten_bridge.call if weight_dtype is None else bfloat16_upcast.call_widened
    (made,) = call(name, operands, [like], then)
    return made


def ending(then: str | None, numbers: Sequence[float]) -> list[tuple[str, list[Any]]]:
    """An activation of `IN_PLACE` as the bridge's calls end with it."""
    if then is None:
        return []
    overload = getattr(torch.ops.aten, f"{then}_").default
    return [(f"aten::{then}_", arguments(overload, [None, *numbers], {})[1:])]
