"""Sums, products, quotients, powers and what is made of them, element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...lowering import checks
from .. import gradients
from ..registry import Promotion, pointwise
from .casting import is_bool, is_complex, is_float
from .transcendental import exp, sqrt

INT_TO_FLOAT = Promotion.INT_TO_FLOAT


# ---- sums and products


@pointwise("aten::add.Tensor", "aten::add.Scalar", dynamic_scalars=True)
def add(x, y, alpha=1):
    if is_bool(x) and is_bool(y):
        return jnp.logical_or(x, jnp.asarray(y) & jnp.asarray(alpha).astype(bool))
    return x + y if _is_one(alpha) else x + alpha * y


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


@pointwise("aten::square")
def square(x):
    return x * x


@pointwise("aten::addcmul", dynamic_scalars=True)
def addcmul(x, first, second, *, value=1):
    return x + value * first * second


@pointwise("aten::addcdiv", dynamic_scalars=True)
def addcdiv(x, numerator, denominator, *, value=1):
    return x + divide(value * numerator, denominator)


@pointwise("aten::lerp.Scalar", "aten::lerp.Tensor", dynamic_scalars=True)
def lerp(start, end, weight):
    # the two forms are torch's own: exact at both ends
    near_start = jnp.abs(weight) < 0.5
    return jnp.where(near_start, start + weight * (end - start), end - (end - start) * (1 - weight))


# ---- signs


@pointwise("aten::neg")
def neg(x):
    return -x


@pointwise("aten::abs", promotion=Promotion.COMPLEX_TO_FLOAT)
def absolute(x):
    if is_complex(x):  # an infinite part outdoes nan
        return jnp.where(jnp.isinf(x.real) | jnp.isinf(x.imag), jnp.inf, jnp.abs(x))
    return gradients.absolute(x)


@pointwise("aten::sign", "aten::sgn")
def sign(x):
    if is_complex(x):
        size = jnp.abs(x)
        return jnp.where(size == 0, 0, x / size)
    if is_bool(x):
        return x
    positive = (x > 0).astype(x.dtype)
    return positive if jnp.issubdtype(x.dtype, jnp.unsignedinteger) else positive - (x < 0).astype(x.dtype)


@pointwise("aten::copysign.Tensor", "aten::copysign.Scalar", promotion=INT_TO_FLOAT)
def copysign(x, y):
    def slope(x, y):
        return jnp.sign(x) * jnp.copysign(jnp.ones_like(x), y)

    x, y = jnp.broadcast_arrays(x, jnp.asarray(y).astype(x.dtype))
    return gradients.with_slopes(jnp.copysign, slope, None)(x, y)


@pointwise("aten::hypot")
def hypot(x, y):
    return jnp.hypot(x, y)


# ---- quotients and remainders


@pointwise("aten::div.Tensor", "aten::div.Scalar", promotion=INT_TO_FLOAT, dynamic_scalars=True)
def div(x, y):
    return divide(x, y)


@pointwise("aten::reciprocal", promotion=INT_TO_FLOAT)
def reciprocal(x):
    return divide(jnp.ones_like(x), x)


def divide(x: Any, y: Any) -> Any:
    """x / y; the complex quotient as c10::complex computes it, which does not overflow and gives infinities."""
    if not (is_complex(x) or is_complex(y)):
        return x / y
    x, y = (jnp.asarray(operand, jnp.result_type(x, y)) for operand in (x, y))
    a, b, c, d = x.real, x.imag, y.real, y.imag
    wide = jnp.abs(c) >= jnp.abs(d)
    large, small = jnp.where(wide, c, d), jnp.where(wide, d, c)
    zero = (large == 0) & (small == 0)
    ratio = small / jnp.where(zero, 1, large)
    scale = 1 / (large + small * ratio)
    real = jnp.where(wide, a + b * ratio, a * ratio + b) * scale
    imag = jnp.where(wide, b - a * ratio, b * ratio - a) * scale
    return jax.lax.complex(jnp.where(zero, a / c, real), jnp.where(zero, b / c, imag))


@pointwise("aten::div.Tensor_mode", "aten::div.Scalar_mode", promotion=Promotion.NO_OPMATH, fallible=True)
def div_mode(x, y, rounding_mode=None):
    if rounding_mode is None:
        return divide(x, y)
    if rounding_mode == "floor":
        return floor_divide(x, y)
    x, y = _common(x, y)
    if is_float(x):
        x, y, rounded = _rounding_steps(x, y)
        return jnp.trunc(rounded(x / y))
    _require_nonzero(y)
    return jax.lax.div(x, y)


@pointwise("aten::floor_divide", "aten::floor_divide.Scalar", promotion=Promotion.NO_OPMATH, fallible=True)
def floor_divide(x, y):
    x, y = _common(x, y)
    if not is_float(x):
        _require_nonzero(y)
        return jnp.floor_divide(x, y)
    x, y, rounded = _rounding_steps(x, y)
    rest = rounded(jax.lax.rem(x, y))
    quotient = rounded(rounded(x - rest) / y)
    quotient = jnp.where((rest != 0) & ((y < 0) != (rest < 0)), rounded(quotient - 1), quotient)
    floor = jnp.floor(quotient)
    floor = jnp.where(rounded(quotient - floor) > 0.5, floor + 1, floor)
    floor = jnp.where(quotient == 0, jnp.copysign(jnp.zeros_like(x), x / y), floor)
    return jnp.where(y == 0, x / y, floor)


def _rounding_steps(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array, Callable[[jax.Array], jax.Array]]:
    """The operands of a division in at least float32, and what follows each of its steps: torch's vector code rounds
    16-bit floats to 16 bits there, and a jump between integers shows it. XLA would drop mere conversions.
    """
    limits = jnp.finfo(x.dtype)
    if limits.bits >= 32:
        return x, y, lambda value: value
    x, y = x.astype(jnp.float32), y.astype(jnp.float32)
    return x, y, lambda value: jax.lax.reduce_precision(value, limits.nexp, limits.nmant)


@pointwise("aten::remainder.Tensor", "aten::remainder.Scalar", "aten::remainder.Scalar_Tensor", fallible=True)
def remainder(x, y):
    x, y = _common(x, y)
    if not is_float(x):
        _require_nonzero(y)
    return jnp.remainder(x, y)


@pointwise("aten::fmod.Tensor", "aten::fmod.Scalar", fallible=True)
def fmod(x, y):
    x, y = _common(x, y)
    if not is_float(x):
        _require_nonzero(y)
    return jax.lax.rem(x, y)


def _common(x: Any, y: Any) -> tuple[jax.Array, jax.Array]:
    """Arrays of one shape and dtype."""
    dtype = jnp.result_type(x, y)
    x, y = jnp.broadcast_arrays(jnp.asarray(x).astype(dtype), jnp.asarray(y).astype(dtype))
    return x, y


def _require_nonzero(y: jax.Array) -> None:
    checks.require((y != 0).all(), lambda _: RuntimeError("ZeroDivisionError"))


@pointwise("aten::gcd")
def gcd(x, y):
    """Euclid's algorithm as torch's kernel has it, which also ends for the least integer, whose size has wrapped."""
    x, y = (jnp.abs(each) for each in _common(x, y))

    def step(pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x, y = pair
        rest = jax.lax.rem(y, jnp.where(x == 0, 1, x))
        return jnp.where(x == 0, 0, rest), jnp.where(x == 0, y, x)

    return jax.lax.while_loop(lambda pair: (pair[0] != 0).any(), step, (x, y))[1]


@pointwise("aten::lcm")
def lcm(x, y):
    x, y = _common(x, y)
    divisor = gcd(x, y)
    if x.dtype.itemsize < 4:  # C++ has no products of fewer bits, and takes the size before it cuts them
        x, y, divisor = (each.astype(jnp.int32) for each in (x, y, divisor))
    return jnp.where(divisor == 0, 0, jnp.abs(jax.lax.div(x, jnp.where(divisor == 0, 1, divisor)) * y))


# ---- powers


@pointwise("aten::pow.Tensor_Scalar", "aten::pow.Tensor_Tensor", "aten::pow.Scalar", promotion=Promotion.NO_OPMATH)
def power(x, y):
    if isinstance(y, int | float) and not isinstance(y, bool) and (is_float(x) or is_complex(x)):
        return _power_of_number(x, y)
    x, y = _common(x, y)
    if x.dtype.itemsize == 2 and is_float(x):
        return jnp.power(x.astype(jnp.float32), y.astype(jnp.float32))
    if is_bool(x):
        return x | ~y
    if jnp.issubdtype(x.dtype, jnp.integer):
        return _integer_power(x, y)
    if is_complex(x):
        return _complex_power(x, y)
    return gradients.with_slopes(jnp.power, _slope_of_base, _slope_of_exponent)(x, y)


def _slope_of_base(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.where(y == 0, 0, y * jnp.power(x, y - 1))


def _slope_of_exponent(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.where((x == 0) & (y >= 0), 0, jnp.power(x, y) * jnp.log(x))


def _power_of_number(x: jax.Array, y: float) -> jax.Array:
    if y in (2, 3, -2) and x.dtype == jnp.bfloat16:  # torch's kernel rounds each product
        x, _, rounded = _rounding_steps(x, x)
        square = rounded(x * x)
        return square if y == 2 else square * x if y == 3 else 1 / square
    if is_float(x) and x.dtype.itemsize == 2:
        x, y = x.astype(jnp.float32), float(np.asarray(y, x.dtype))  # the exponent is of the dtype
    if y == 0.5:
        return sqrt(x)
    if y == -0.5:
        return divide(jnp.ones_like(x), sqrt(x))
    if float(y).is_integer() and abs(y) <= 8:  # beyond, the errors of the products add up
        positive = jax.lax.integer_pow(x, abs(int(y)))
        return divide(jnp.ones_like(x), positive) if y < 0 else positive
    exponent = jnp.asarray(y, x.dtype)
    return _complex_power(x, exponent) if is_complex(x) else jnp.power(x, exponent)


def _complex_power(x: jax.Array, y: jax.Array) -> jax.Array:
    return exp(y * jnp.log(x))


def _integer_power(x: jax.Array, y: jax.Array) -> jax.Array:
    """Wraps around; 1 and -1 have inverses, the inverse of any other number is 0."""
    bits = y.dtype.itemsize * 8 - jnp.issubdtype(y.dtype, jnp.signedinteger)

    def step(bit: Any, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        result, factor = state
        taken = jax.lax.shift_right_logical(y, jnp.full_like(y, bit)) & 1
        return jnp.where(taken == 1, result * factor, result), factor * factor

    result, _ = jax.lax.fori_loop(0, bits, step, (jnp.ones_like(x), x))
    if jnp.issubdtype(y.dtype, jnp.unsignedinteger):
        return result
    inverse = jnp.where(x == 1, 1, jnp.where(x == -1, jnp.where(y & 1 == 1, -1, 1), 0)).astype(x.dtype)
    return jnp.where(y < 0, inverse, result)
