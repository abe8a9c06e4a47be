"""Elementwise operators."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from .registry import Promotion, pointwise

INT_TO_FLOAT = Promotion.INT_TO_FLOAT
BOOL = Promotion.ALWAYS_BOOL
REAL = Promotion.COMPLEX_TO_FLOAT
EXACT = Promotion.NO_OPMATH


def is_float(x: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jnp.floating)


def is_bool(x: Any) -> bool:
    return jnp.result_type(x) == jnp.bool_


# ---- arithmetic


@pointwise("aten::add.Tensor", "aten::add.Scalar", dynamic_scalars=True)
def add(x, y, alpha=1):
    if _is_one(alpha):
        return jnp.logical_or(x, y) if is_bool(x) and is_bool(y) else x + y
    return x + alpha * y


def _is_one(alpha: Any) -> bool:
    return not isinstance(alpha, jax.Array) and alpha == 1


@pointwise("aten::sub.Tensor", "aten::sub.Scalar", dynamic_scalars=True)
def sub(x, y, alpha=1):
    return x - y if _is_one(alpha) else x - alpha * y


@pointwise("aten::rsub.Tensor", "aten::rsub.Scalar", dynamic_scalars=True)
def rsub(x, y, alpha=1):
    return y - x if _is_one(alpha) else y - alpha * x


@pointwise("aten::mul.Tensor", "aten::mul.Scalar", dynamic_scalars=True)
def mul(x, y):
    return x * y


@pointwise("aten::div.Tensor", "aten::div.Scalar", promotion=INT_TO_FLOAT, dynamic_scalars=True)
def div(x, y):
    return x / y


@pointwise("aten::div.Tensor_mode", "aten::div.Scalar_mode")
def div_mode(x, y, rounding_mode=None):
    if rounding_mode is None:
        return x / y
    if rounding_mode == "floor":
        return floor_divide(x, y)
    if is_float(x) or is_float(y):
        return jnp.trunc(x / y)
    return jax.lax.div(*_same_ints(x, y))


@pointwise("aten::floor_divide", "aten::floor_divide.Scalar")
def floor_divide(x, y):
    return jnp.floor_divide(x, y)


def _same_ints(x: Any, y: Any) -> tuple[jax.Array, jax.Array]:
    x, y = jnp.broadcast_arrays(jnp.asarray(x), jnp.asarray(y))
    dtype = jnp.result_type(x, y)
    return x.astype(dtype), y.astype(dtype)


@pointwise("aten::remainder.Tensor", "aten::remainder.Scalar", "aten::remainder.Scalar_Tensor")
def remainder(x, y):
    return jnp.remainder(x, y)


@pointwise("aten::fmod.Tensor", "aten::fmod.Scalar")
def fmod(x, y):
    return jnp.fmod(x, y)


@pointwise("aten::pow.Tensor_Scalar", "aten::pow.Tensor_Tensor", "aten::pow.Scalar")
def power(x, y):
    if isinstance(y, int | float) and not isinstance(y, bool):
        if y == 2:
            return x * x
        if y == 0.5 and is_float(x):
            return jnp.sqrt(x)
        if float(y).is_integer() and abs(y) < 2**31:
            return jax.lax.integer_pow(jnp.asarray(x), int(y))
    return jnp.power(x, y)


@pointwise("aten::addcmul", dynamic_scalars=True)
def addcmul(x, first, second, *, value=1):
    return x + value * first * second


@pointwise("aten::addcdiv", dynamic_scalars=True)
def addcdiv(x, numerator, denominator, *, value=1):
    return x + value * numerator / denominator


@pointwise("aten::lerp.Scalar", "aten::lerp.Tensor", dynamic_scalars=True)
def lerp(start, end, weight):
    # the two forms are torch's own: exact at both ends
    near_start = jnp.abs(weight) < 0.5
    return jnp.where(near_start, start + weight * (end - start), end - (end - start) * (1 - weight))


@pointwise("aten::neg", "aten::_neg_view", "aten::_neg_view_copy")
def neg(x):
    return -x


@pointwise("aten::abs", promotion=REAL)
def absolute(x):
    return jnp.abs(x)


@pointwise("aten::sgn", "aten::sign")
def sign(x):
    return x if is_bool(x) else jnp.sign(x)


@pointwise("aten::reciprocal", promotion=INT_TO_FLOAT)
def reciprocal(x):
    return 1 / x


@pointwise("aten::square")
def square(x):
    return x * x


# ---- exponentials, logarithms, trigonometry


def _unary(name: str, function: Any) -> None:
    pointwise(f"aten::{name}", promotion=INT_TO_FLOAT)(function)


for _name, _function in {
    "exp": jnp.exp,
    "exp2": jnp.exp2,
    "expm1": jnp.expm1,
    "log": jnp.log,
    "log2": jnp.log2,
    "log10": jnp.log10,
    "log1p": jnp.log1p,
    "sqrt": jnp.sqrt,
    "rsqrt": jax.lax.rsqrt,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "tan": jnp.tan,
    "asin": jnp.arcsin,
    "acos": jnp.arccos,
    "atan": jnp.arctan,
    "sinh": jnp.sinh,
    "cosh": jnp.cosh,
    "tanh": jnp.tanh,
    "asinh": jnp.arcsinh,
    "acosh": jnp.arccosh,
    "atanh": jnp.arctanh,
    "sigmoid": jax.nn.sigmoid,
    "erf": jax.lax.erf,
    "erfc": jax.lax.erfc,
    "erfinv": jax.lax.erf_inv,
    "lgamma": jax.lax.lgamma,
    "digamma": jax.lax.digamma,
    "sinc": jnp.sinc,
}.items():
    _unary(_name, _function)


@pointwise("aten::atan2", promotion=INT_TO_FLOAT)
def atan2(x, y):
    return jnp.arctan2(x, y)


@pointwise("aten::logaddexp", promotion=INT_TO_FLOAT)
def logaddexp(x, y):
    return jnp.logaddexp(x, y)


@pointwise("aten::hypot")
def hypot(x, y):
    return jnp.hypot(x, y)


@pointwise("aten::xlogy.Tensor", "aten::xlogy.Scalar_Other", "aten::xlogy.Scalar_Self", promotion=INT_TO_FLOAT)
def xlogy(x, y):
    x, y = jnp.asarray(x), jnp.asarray(y)
    return jnp.where((x == 0) & ~jnp.isnan(y), 0.0, x * jnp.log(y))


# ---- rounding


def _keep_integers(function: Any) -> Any:
    return lambda x: function(x) if is_float(x) else x


for _name, _function in {"floor": jnp.floor, "ceil": jnp.ceil, "trunc": jnp.trunc, "round": jnp.round}.items():
    pointwise(f"aten::{_name}", promotion=EXACT)(_keep_integers(_function))


@pointwise("aten::frac", promotion=EXACT)
def frac(x):
    return x - jnp.trunc(x)


# ---- comparison and logic


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


@pointwise("aten::signbit", promotion=BOOL)
def signbit(x):
    return jnp.signbit(x) if is_float(x) else x < 0


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


# ---- extrema; nan wins, as in torch


@pointwise("aten::maximum")
def maximum(x, y):
    return jnp.maximum(x, y)


@pointwise("aten::minimum")
def minimum(x, y):
    return jnp.minimum(x, y)


@pointwise("aten::fmax")
def fmax(x, y):
    return jnp.fmax(x, y)


@pointwise("aten::fmin")
def fmin(x, y):
    return jnp.fmin(x, y)


@pointwise("aten::clamp", "aten::clamp.Tensor")
def clamp(x, min=None, max=None):
    if min is not None:
        x = jnp.maximum(x, min)
    return x if max is None else jnp.minimum(x, max)


@pointwise("aten::clamp_min", "aten::clamp_min.Tensor")
def clamp_min(x, min):
    return jnp.maximum(x, min)


@pointwise("aten::clamp_max", "aten::clamp_max.Tensor")
def clamp_max(x, max):
    return jnp.minimum(x, max)


# ---- parts of numbers


@pointwise("aten::nan_to_num")
def nan_to_num(x, nan=None, posinf=None, neginf=None):
    if not is_float(x):
        return x
    return jnp.nan_to_num(x, nan=0.0 if nan is None else nan, posinf=posinf, neginf=neginf)


@pointwise("aten::real", promotion=REAL)
def real(x):
    return jnp.real(x)


@pointwise("aten::_conj", "aten::_conj_copy", "aten::_conj_physical", "aten::conj_physical")
def conj(x):
    return jnp.conj(x)
