"""Comparisons, logic, membership, and extrema of two operands."""

from __future__ import annotations

import jax.numpy as jnp

from ..registry import Promotion, op, pointwise
from .casting import is_float

BOOL = Promotion.ALWAYS_BOOL


@pointwise("aten::eq.Tensor", "aten::eq.Scalar", promotion=BOOL)
def eq(x, y):
    return x == y


@pointwise("aten::ne.Tensor", "aten::ne.Scalar", promotion=BOOL)
def ne(x, y):
    return x != y


@pointwise("aten::lt.Tensor", "aten::lt.Scalar", promotion=BOOL)
def lt(x, y):
    return x < y


@pointwise("aten::le.Tensor", "aten::le.Scalar", promotion=BOOL)
def le(x, y):
    return x <= y


@pointwise("aten::gt.Tensor", "aten::gt.Scalar", promotion=BOOL)
def gt(x, y):
    return x > y


@pointwise("aten::ge.Tensor", "aten::ge.Scalar", promotion=BOOL)
def ge(x, y):
    return x >= y


@pointwise("aten::logical_and", promotion=BOOL)
def logical_and(x, y):
    return jnp.logical_and(x, y)


@pointwise("aten::logical_or", promotion=BOOL)
def logical_or(x, y):
    return jnp.logical_or(x, y)


@pointwise("aten::logical_xor", promotion=BOOL)
def logical_xor(x, y):
    return jnp.logical_xor(x, y)


@pointwise("aten::logical_not", promotion=BOOL)
def logical_not(x):
    return jnp.logical_not(x)


@pointwise("aten::isnan", promotion=BOOL)
def isnan(x):
    return jnp.isnan(x)


@pointwise("aten::isinf", promotion=BOOL)
def isinf(x):
    return jnp.isinf(x)


@pointwise("aten::isfinite", promotion=BOOL)
def isfinite(x):
    return jnp.isfinite(x)


@pointwise("aten::isposinf", promotion=BOOL)
def isposinf(x):
    return x == jnp.inf if is_float(x) else jnp.zeros(x.shape, bool)


@pointwise("aten::isneginf", promotion=BOOL)
def isneginf(x):
    return x == -jnp.inf if is_float(x) else jnp.zeros(x.shape, bool)


@pointwise("aten::signbit", promotion=BOOL)
def signbit(x):
    return jnp.signbit(x) if is_float(x) else x < 0


@op("aten::isin.Tensor_Tensor", "aten::isin.Tensor_Scalar", "aten::isin.Scalar_Tensor")
def isin(elements, test_elements, *, assume_unique=False, invert=False):
    return jnp.isin(elements, test_elements, assume_unique=assume_unique, invert=invert)


# ---- extrema; nan wins, as in torch


@pointwise("aten::maximum")
def maximum(x, y):
    return jnp.maximum(x, y)


@pointwise("aten::minimum")
def minimum(x, y):
    return jnp.minimum(x, y)


# Of two zeros `maximum` and `minimum` give what IEEE 754-2019 wants; torch's kernels the first or the second operand,
# depending on the number of elements. With `fmax` and `fmin` it is always the first.


@pointwise("aten::fmax")
def fmax(x, y):
    return jnp.where((x >= y) | (y != y), x, y)


@pointwise("aten::fmin")
def fmin(x, y):
    return jnp.where((x <= y) | (y != y), x, y)


@pointwise("aten::clamp", "aten::clamp.Tensor")
def clamp(x, min=None, max=None):
    if min is not None:
        x = clamp_min(x, min)
    return x if max is None else clamp_max(x, max)


@pointwise("aten::clamp_min", "aten::clamp_min.Tensor")
def clamp_min(x, min):
    return jnp.where((x < min) | (min != min), min, x)  # keeps a negative zero above 0, as torch does


@pointwise("aten::clamp_max", "aten::clamp_max.Tensor")
def clamp_max(x, max):
    return jnp.where((x > max) | (max != max), max, x)
