"""Exponentials, logarithms, trigonometric and hyperbolic functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..gradients import with_slopes
from ..registry import Promotion, pointwise
from .casting import is_complex

INT_TO_FLOAT = Promotion.INT_TO_FLOAT


def _unary(name: str, function: Callable[[Any], Any]) -> None:
    pointwise(f"aten::{name}", promotion=INT_TO_FLOAT)(function)


for _name, _function in {
    "log": jnp.log,
    "log2": jnp.log2,
    "log10": jnp.log10,
    "expm1": jnp.expm1,
    "tan": jnp.tan,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "sinc": jnp.sinc,
}.items():
    _unary(_name, _function)


# ---- with formulas of their own for complex numbers, where jax loses small parts or infinities


def _of_parts(name: str, real: Callable[[Any], Any], complex_: Callable[[Any, Any], tuple[Any, Any]]) -> Any:
    """Registers `real`, and for complex numbers the function (real part, imaginary part) → (real, imaginary part)."""

    def function(x: Any) -> Any:
        return jax.lax.complex(*complex_(x.real, x.imag)) if is_complex(x) else real(x)

    _unary(name, function)
    return function


def _exp(a: Any, b: Any) -> tuple[Any, Any]:
    size = jnp.exp(a)
    zero = jnp.zeros_like(a)  # whatever the angle
    return jnp.where(size == 0, zero, size * jnp.cos(b)), jnp.where(size == 0, zero, _times(size, jnp.sin(b)))


def _times(x: Any, part: Any) -> Any:
    """x * part, 0 where an infinite x meets a part that is 0: a real number stays real."""
    return jnp.where(part == 0, part * jnp.sign(x), x * part)


def _log1p(a: Any, b: Any) -> tuple[Any, Any]:
    near = jnp.hypot(a, b) < 0.5
    return jnp.where(near, jnp.log1p(2 * a + a * a + b * b) / 2, jnp.log(jnp.hypot(a + 1, b))), jnp.arctan2(b, a + 1)


exp = _of_parts("exp", jnp.exp, _exp)
exp2 = _of_parts("exp2", jnp.exp2, lambda a, b: _exp(a * jnp.log(2).astype(a.dtype), b * jnp.log(2).astype(a.dtype)))
log1p = _of_parts("log1p", jnp.log1p, _log1p)
_of_parts("sin", jnp.sin, lambda a, b: (_times(jnp.cosh(b), jnp.sin(a)), jnp.cos(a) * jnp.sinh(b)))
_of_parts("cos", jnp.cos, lambda a, b: (jnp.cos(a) * jnp.cosh(b), -_times(jnp.sinh(b), jnp.sin(a))))
_of_parts("sinh", jnp.sinh, lambda a, b: (jnp.sinh(a) * jnp.cos(b), _times(jnp.cosh(a), jnp.sin(b))))
_of_parts("cosh", jnp.cosh, lambda a, b: (jnp.cosh(a) * jnp.cos(b), _times(jnp.sinh(a), jnp.sin(b))))


# ---- with a branch cut: the sign of a zero says on which side of it a number lies


def _by_conjugation(name: str, function: Callable[[Any], Any], sign: int = 1) -> Any:
    """Registers a function with f(conj z) = conj f(z), whose imaginary part has that sign on the upper half plane."""

    def whole(x: Any) -> Any:
        if not is_complex(x):
            return function(x)
        found = function(jax.lax.complex(x.real, jnp.abs(x.imag)))
        return jax.lax.complex(found.real, jnp.copysign(sign * jnp.abs(found.imag), sign * x.imag))

    _unary(name, whole)
    return whole


def _odd(name: str, function: Callable[[Any], Any]) -> None:
    """Registers a function with f(-conj z) = -conj f(z), whose real part has the sign of z's."""

    def whole(x: Any) -> Any:
        if not is_complex(x):
            return function(x)
        found = function(jax.lax.complex(jnp.abs(x.real), x.imag))
        return jax.lax.complex(jnp.copysign(found.real, x.real), found.imag)

    _unary(name, whole)


sqrt = _by_conjugation("sqrt", jnp.sqrt)
_by_conjugation("acos", jnp.arccos, -1)
_by_conjugation("asin", jnp.arcsin)
_by_conjugation("acosh", jnp.arccosh)
_by_conjugation("atanh", jnp.arctanh)
_odd("asinh", jnp.arcsinh)
_odd("atan", jnp.arctan)


@pointwise("aten::rsqrt", promotion=INT_TO_FLOAT)
def rsqrt(x):
    return jax.lax.rsqrt(x)


# ---- of two numbers


@pointwise("aten::atan2", promotion=INT_TO_FLOAT)
def atan2(x, y):
    def slope(of, x, y):
        square = x * x + y * y
        return jnp.where(square == 0, 0, of(x, y) / square)

    slopes = (functools.partial(slope, lambda x, y: y), functools.partial(slope, lambda x, y: -x))
    return with_slopes(jnp.arctan2, *slopes)(*jnp.broadcast_arrays(x, y))


@pointwise("aten::logaddexp", promotion=INT_TO_FLOAT)
def logaddexp(x, y):
    if not is_complex(x):
        return jnp.logaddexp(x, y)
    # the imaginary part is not brought back to one turn
    less = (x.real < y.real) | jnp.isnan(y.real) | jnp.isnan(y.imag)
    low, high = jnp.where(less, x, y), jnp.where(less, y, x)
    found = log1p(exp(low - high)) + high
    same = jnp.isinf(low.real) & (low.real == high.real)
    return jnp.where(same, jnp.where(low.real < 0, low, jnp.log(exp(low) + exp(high))), found)


@pointwise("aten::logaddexp2", promotion=INT_TO_FLOAT)
def logaddexp2(x, y):
    return jnp.logaddexp2(x, y)
