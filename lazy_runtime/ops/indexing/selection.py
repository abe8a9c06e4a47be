"""Choosing, filling, copying, casting and counting up: operators whose result does not come from arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ...ir import dtypes
from ...lowering.layout import ChannelsLast, Repeated, Transposed, Widened, elementwise, logical
from ..elementwise.casting import convert
from ..registry import op

aten = torch.ops.aten


def cast(x, dtype):
    """`x` as torch's `dtype`."""
    return convert(x, dtypes.to_numpy(dtype))


def _of_bytes(operator: Any) -> Callable[..., Any]:
    """For `infer=`: the operator, whose meta kernel takes no condition of bytes as the CPU kernel does."""

    def infer(condition: torch.Tensor, x: Any, y: Any) -> Any:
        is_mask = condition.is_meta and condition.dtype is torch.uint8
        return operator(condition.bool() if is_mask else condition, x, y)

    return infer


@op("aten::where.self", infer=_of_bytes(aten.where.self))
@op("aten::where.ScalarOther", infer=_of_bytes(aten.where.ScalarOther))
@op("aten::where.ScalarSelf", infer=_of_bytes(aten.where.ScalarSelf))
@op("aten::where.Scalar", infer=_of_bytes(aten.where.Scalar))
def where(condition, x, y, *, out):
    dtype = dtypes.to_numpy(out.dtype)
    return jnp.where(condition.astype(bool), jnp.asarray(x).astype(dtype), jnp.asarray(y).astype(dtype))


@op("aten::masked_fill.Scalar", "aten::masked_fill.Tensor", dynamic_scalars=True)
def masked_fill(x, mask, value, *, out):
    return jnp.broadcast_to(jnp.where(mask, jnp.asarray(value).astype(x.dtype), x), out.shape)


@op("aten::fill.Scalar", "aten::fill.Tensor", dynamic_scalars=True)
def fill(x, value):
    return jnp.broadcast_to(jnp.asarray(value).astype(x.dtype), x.shape)


@op("aten::zero")
def zero(x):
    return jnp.zeros_like(x)


@op("aten::copy")
def copy(x, source, non_blocking=False, *, out):
    return jnp.broadcast_to(cast(source, out.dtype), x.shape)


@op("aten::clone", "aten::contiguous", channels_last=True, repeated=True)
def clone(x, *, out, **options):
    if isinstance(x, Repeated):
        return x
    return elementwise(lambda x: cast(x, out.dtype), x)


@op("aten::_to_copy", channels_last=True, transposed=True)
def to_copy(x, *, out, **options):
    if isinstance(x, Transposed) and x.dtype == np.int8 and out.dtype.is_floating_point:
        return Widened(x.physical, dtypes.to_numpy(out.dtype))  # quantised weights, which a product converts
    return clone(logical(x, ChannelsLast), out=out)


@op("aten::view.dtype", view=True)
def view_dtype(x, dtype, *, out):
    target = dtypes.to_numpy(dtype)
    if x.dtype == np.bool_:
        x = x.astype(np.uint8)
    if jnp.iscomplexobj(x):
        parts = jnp.stack([jnp.real(x), jnp.imag(x)], axis=-1)
        x = parts.reshape(*x.shape[:-1], 2 * x.shape[-1]) if x.ndim else parts
    if np.issubdtype(target, np.complexfloating):
        parts = _bits(x, np.finfo(target).dtype).reshape(*out.shape, 2)
        return jax.lax.complex(parts[..., 0], parts[..., 1])
    if target == np.bool_:
        return _bits(x, jnp.uint8).astype(bool).reshape(out.shape)
    return _bits(x, target).reshape(out.shape)


def _bits(x, dtype):
    if x.dtype.itemsize < np.dtype(dtype).itemsize:
        count = np.dtype(dtype).itemsize // x.dtype.itemsize
        x = x.reshape(*x.shape[:-1], x.shape[-1] // count, count)
    return jax.lax.bitcast_convert_type(x, dtype)


# ---- factories


@op("aten::full", "aten::scalar_tensor", dynamic_scalars=True)
def full(*size_and_value, out, **options):
    return jnp.full(out.shape, size_and_value[-1], dtype=dtypes.to_numpy(out.dtype))


@op("aten::full_like", dynamic_scalars=True)
def full_like(x, value, *, out, **options):
    return jnp.full(out.shape, value, dtype=dtypes.to_numpy(out.dtype))


@op(
    "aten::zeros_like", "aten::empty_like", "aten::zeros", "aten::new_zeros", "aten::new_empty",
    "aten::empty.memory_format", "aten::new_empty_strided", "aten::empty_strided", "aten::empty_permuted",
    "aten::_efficientzerotensor",
)  # fmt: skip
def zeros(*args, out, **options):
    return jnp.zeros(out.shape, dtype=dtypes.to_numpy(out.dtype))


@op("aten::ones_like", "aten::ones", "aten::new_ones")
def ones(*args, out, **options):
    return jnp.ones(out.shape, dtype=dtypes.to_numpy(out.dtype))


@op("aten::new_full", dynamic_scalars=True)
def new_full(x, size, value, *, out, **options):
    return jnp.full(out.shape, value, dtype=dtypes.to_numpy(out.dtype))


@op("aten::arange", "aten::arange.start", "aten::arange.start_step")
def arange(*args, out, **options):
    start, _end, step = (0, *args, 1) if len(args) == 1 else (*args, 1)[:3]
    dtype = dtypes.to_numpy(out.dtype)
    steps = jnp.arange(out.numel, dtype=jnp.int64)
    if jnp.issubdtype(dtype, jnp.integer):
        return (int(start) + steps * int(step)).astype(dtype)
    return (start + steps * np.float64(step)).astype(dtype)


@op(*(f"aten::linspace{kind}" for kind in ("", ".Tensor_Tensor", ".Tensor_Scalar", ".Scalar_Tensor")))
def linspace(start, end, steps, *, out, **options):
    return _evenly_spaced(start, end, steps, out.dtype).astype(dtypes.to_numpy(out.dtype))


def _evenly_spaced(start, end, steps, dtype):
    """The values in float64 or complex128; both ends are rounded to the dtype first."""
    wide = jnp.complex128 if dtype.is_complex else jnp.float64
    start, end = (cast(jnp.asarray(number), dtype).astype(wide) for number in (start, end))
    # torch counts from both ends, so that the last element is exactly `end`
    index = jnp.arange(steps, dtype=jnp.float64)
    step = (end - start) / max(steps - 1, 1)
    return jnp.where(index < max(steps // 2, steps == 1), start + index * step, end - (steps - 1 - index) * step)


@op(*(f"aten::logspace{kind}" for kind in ("", ".Tensor_Tensor", ".Tensor_Scalar", ".Scalar_Tensor")))
def logspace(start, end, steps, base=10.0, *, out, **options):
    # a single value is the one that torch does not round before
    whole = not (out.dtype.is_floating_point or out.dtype.is_complex)
    exponents = _evenly_spaced(start, end, steps, torch.float64 if steps == 1 and whole else out.dtype)
    return cast(jnp.power(jnp.asarray(base, exponents.dtype), exponents), out.dtype)


@op("aten::eye", "aten::eye.m")
def eye(*size, out, **options):
    return jnp.eye(*out.shape, dtype=dtypes.to_numpy(out.dtype))


@op("aten::tril_indices")
def tril_indices(row, col, offset=0, *, out, **options):
    return jnp.stack([jnp.asarray(i) for i in np.tril_indices(row, offset, col)]).astype(dtypes.to_numpy(out.dtype))


@op("aten::triu_indices")
def triu_indices(row, col, offset=0, *, out, **options):
    return jnp.stack([jnp.asarray(i) for i in np.triu_indices(row, offset, col)]).astype(dtypes.to_numpy(out.dtype))


@op("aten::tril")
def tril(x, diagonal=0):
    return jnp.tril(x, diagonal)


@op("aten::triu")
def triu(x, diagonal=0):
    return jnp.triu(x, diagonal)
