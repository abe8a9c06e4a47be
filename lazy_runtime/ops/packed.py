"""Convolutions and products with weights that are kept in the order in which oneDNN's kernels read them.

The kernels bring a weight into that order at each call, and XLA's products do something alike; of a layer with many
weights and few pixels or rows, that is up to two thirds of the time. What keeps a weight from call to call
(`openxla_backend/parameters.py`) packs it once. The order is oneDNN's choice, by the processor and the sizes; to XLA it
is so many bytes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch.utils._python_dispatch import _disable_current_modes

from .. import aten_bridge
from ..layout import ChannelsLast, Packed, physical
from .registry import op

_mkldnn = torch.ops.mkldnn

_library = torch.library.Library("lazy_runtime", "FRAGMENT")
_library.define(
    "pack_filters(Tensor filters, int[] image_size, int[] stride, int[] padding, int[] dilation, int groups) -> Tensor"
)
_library.define(
    "packed_convolution(Tensor image, Tensor packed, Tensor? bias, int[] size, int[] stride, int[] padding, "
    "int[] dilation, int groups) -> Tensor"
)
_library.define("pack_matrix(Tensor matrix, int rows) -> Tensor")
_library.define("packed_linear(Tensor x, Tensor packed, Tensor? bias, int[] size) -> Tensor")


@functools.cache
def available(platform: str, dtype: torch.dtype) -> bool:
    """Whether weights of this dtype can be packed on this platform."""
    if platform != "cpu" or not torch.backends.mkldnn.is_available() or not aten_bridge.available():
        return False
    if not hasattr(_mkldnn, "_get_mkldnn_serialized_md"):
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and _mkldnn._is_mkldnn_bf16_supported())


# ---- the order of a weight


@functools.cache
def _filters(size: tuple[int, ...], dtype: torch.dtype, image_size: tuple[int, ...], *geometry: Any) -> Packed:
    """How filters of this size are packed for images of that size; without the bytes."""
    stride, padding, dilation, groups = geometry
    with _plain():
        filters = torch.empty(size, dtype=dtype)
        packed = _mkldnn._reorder_convolution_weight(filters, padding, stride, dilation, groups, image_size)
        return _described(packed, filters)


@functools.cache
def _matrix(size: tuple[int, ...], dtype: torch.dtype, rows: int) -> Packed:
    """How a matrix of this size is packed for products with so many rows."""
    with _plain():
        matrix = torch.empty(size, dtype=dtype)
        return _described(_mkldnn._reorder_linear_weight(matrix, rows), matrix)


@contextlib.contextmanager
def _plain() -> Iterator[None]:
    """Tensors on the CPU, whatever the caller is tracing or inferring."""
    with torch.no_grad(), _disable_current_modes(), torch.device("cpu"):
        yield


def _described(packed: torch.Tensor, plain: torch.Tensor) -> Packed:
    order = bytes(_mkldnn._get_mkldnn_serialized_md(packed).tolist())
    space = jax.ShapeDtypeStruct((_mkldnn._nbytes(packed),), jnp.uint8)
    return Packed(space, plain.dtype, tuple(plain.shape), order)


def _key(*arguments: Any) -> tuple[Any, ...]:
    return tuple(tuple(x) if isinstance(x, Sequence) else x for x in arguments)


# ---- the operators


def _bytes(number: int) -> torch.Tensor:
    return torch.empty(number, dtype=torch.uint8, device="meta")


def _infer_filters(filters, image_size, stride, padding, dilation, groups):
    return _bytes(packed_filters(filters, image_size, stride, padding, dilation, groups))


def _infer_convolution(image, packed, bias, size, stride, padding, dilation, groups):
    filters = image.new_empty(size)
    none = [0] * len(stride)
    return torch.ops.aten.convolution.default(image, filters, bias, stride, padding, dilation, False, none, groups)


_library.impl("pack_filters", _infer_filters, "Meta")
_library.impl("pack_matrix", lambda matrix, rows: _bytes(packed_matrix(matrix, rows)), "Meta")
_library.impl("packed_convolution", _infer_convolution, "Meta")
_library.impl("packed_linear", lambda x, packed, bias, size: x.new_empty(x.shape[0], size[0]), "Meta")


def packed_filters(filters: torch.Tensor, image_size: Sequence[int], *geometry: Any) -> int:
    """How many bytes filters take when they are packed for images of this size.

    Args:
        filters: of any device.
        geometry: stride, padding, dilation and groups, of `pack_filters`.
    """
    return _filters(*_key(filters.shape, filters.dtype, image_size, *geometry)).physical.size


def packed_matrix(matrix: torch.Tensor, rows: int) -> int:
    """How many bytes a matrix takes when it is packed for products with so many rows."""
    return _matrix(tuple(matrix.shape), matrix.dtype, rows).physical.size


@op("lazy_runtime::pack_filters")
def pack_filters(filters, image_size, stride, padding, dilation, groups, *, input_spec):
    order = _filters(*_key(filters.shape, input_spec.dtype, image_size, stride, padding, dilation, groups))
    return _pack("_reorder_convolution_weight", [filters, padding, stride, dilation, groups, image_size], order)


@op("lazy_runtime::pack_matrix")
def pack_matrix(matrix, rows, *, input_spec):
    return _pack("_reorder_linear_weight", [matrix, rows], _matrix(matrix.shape, input_spec.dtype, rows))


def _pack(name: str, arguments: list[Any], order: Packed) -> Any:
    (packed,) = aten_bridge.call(f"mkldnn::{name}", arguments, [order])
    return packed


@op("lazy_runtime::packed_convolution", channels_last=True, products=True)
def packed_convolution(image, packed, bias, size, stride, padding, dilation, groups, *, input_spec, out):
    order = _filters(*_key(size, input_spec.dtype, input_spec.shape, stride, padding, dilation, groups))
    batch, channels, *space = out.shape
    like = ChannelsLast(jax.ShapeDtypeStruct((batch, *space, channels), image.dtype))
    weight = order._replace(physical=packed)
    arguments = [ChannelsLast(physical(image)), weight, bias, padding, stride, dilation, groups, "none", [], None]
    (made,) = aten_bridge.call("mkldnn::_convolution_pointwise", arguments, [like])
    return made


@op("lazy_runtime::packed_linear", products=True)
def packed_linear(x, packed, bias, size, *, input_spec):
    order = _matrix(tuple(size), input_spec.dtype, x.shape[0])
    like = jax.ShapeDtypeStruct((x.shape[0], size[0]), x.dtype)
    arguments = [x, order._replace(physical=packed), bias, "none", [], None]
    (made,) = aten_bridge.call("mkldnn::_linear_pointwise", arguments, [like])
    return made
