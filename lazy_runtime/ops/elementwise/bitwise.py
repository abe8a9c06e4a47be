"""Logic and shifts on the bits of integers."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ..registry import pointwise


@pointwise("aten::bitwise_and.Tensor", "aten::bitwise_and.Scalar", "aten::bitwise_and.Scalar_Tensor")
def bitwise_and(x, y):
    return jnp.bitwise_and(x, y)


@pointwise("aten::bitwise_or.Tensor", "aten::bitwise_or.Scalar", "aten::bitwise_or.Scalar_Tensor")
def bitwise_or(x, y):
    return jnp.bitwise_or(x, y)


@pointwise("aten::bitwise_xor.Tensor", "aten::bitwise_xor.Scalar", "aten::bitwise_xor.Scalar_Tensor")
def bitwise_xor(x, y):
    return jnp.bitwise_xor(x, y)


@pointwise("aten::bitwise_not")
def bitwise_not(x):
    return jnp.bitwise_not(x)


# Torch shifts by a count outside of [0, bits) as if bit by bit: to the left gives 0, to the right 0 or -1.


@pointwise(
    "aten::bitwise_left_shift.Tensor",
    "aten::bitwise_left_shift.Tensor_Scalar",
    "aten::bitwise_left_shift.Scalar_Tensor",
    "aten::__lshift__.Tensor",
    "aten::__lshift__.Scalar",
)
def left_shift(x, count):
    x, count, inside = _operands(x, count)
    return jnp.where(inside, jax.lax.shift_left(x, count), 0)


@pointwise(
    "aten::bitwise_right_shift.Tensor",
    "aten::bitwise_right_shift.Tensor_Scalar",
    "aten::bitwise_right_shift.Scalar_Tensor",
    "aten::__rshift__.Tensor",
    "aten::__rshift__.Scalar",
)
def right_shift(x, count):
    x, count, inside = _operands(x, count)
    if jnp.issubdtype(x.dtype, jnp.unsignedinteger):
        return jnp.where(inside, jax.lax.shift_right_logical(x, count), 0)
    return jnp.where(inside, jax.lax.shift_right_arithmetic(x, count), jnp.where(x < 0, -1, 0).astype(x.dtype))


def _operands(x, count):
    dtype = jnp.result_type(x, count)
    x, count = jnp.broadcast_arrays(jnp.asarray(x).astype(dtype), jnp.asarray(count).astype(dtype))
    inside = (count >= 0) & (count < dtype.itemsize * 8)
    return x, jnp.where(inside, count, 0), inside
