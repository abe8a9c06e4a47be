"""Rounding, and what floating point numbers are made of."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..gradients import with_gradient
from ..registry import Promotion, checked_dtypes, op, pointwise
from .casting import is_complex, is_float

EXACT = Promotion.NO_OPMATH


# ---- rounding


def _keep_integers(function: Any) -> Any:
    return lambda x: function(x) if is_float(x) else x


for _name, _function in {"floor": jnp.floor, "ceil": jnp.ceil, "trunc": jnp.trunc, "round": jnp.round}.items():
    pointwise(f"aten::{_name}", promotion=EXACT)(_keep_integers(_function))


@pointwise("aten::frac", promotion=EXACT)
def frac(x):
    return x - jnp.trunc(x)


@pointwise("aten::round.decimals", promotion=EXACT)
def round_decimals(x, *, decimals):
    if not is_float(x):
        return x
    scale = jnp.asarray(10.0 ** abs(decimals), x.dtype)
    return jnp.round(x / scale) * scale if decimals < 0 else jnp.round(x * scale) / scale


# ---- parts and neighbours


@op("aten::frexp.Tensor", infer=checked_dtypes("aten::frexp.Tensor"))
def frexp(x):
    mantissa, exponent = jnp.frexp(x)
    return mantissa.astype(x.dtype), exponent.astype(jnp.int32)


@pointwise("aten::nextafter", promotion=EXACT)
def nextafter(x, y):
    def gradient(cotangent, _, x, y):
        return jnp.where(x == y, 0, cotangent), jnp.zeros_like(y)

    return with_gradient(jax.lax.nextafter, gradient)(*jnp.broadcast_arrays(x, y))


@pointwise("aten::heaviside", promotion=EXACT)
def heaviside(x, at_zero):
    return jnp.where(x == 0, at_zero, (x > 0).astype(x.dtype))


@op("aten::nan_to_num", infer=checked_dtypes("aten::nan_to_num"))
def nan_to_num(x, nan=None, posinf=None, neginf=None):
    if is_complex(x):
        return jax.lax.complex(*(nan_to_num(part, nan, posinf, neginf) for part in (x.real, x.imag)))
    if not is_float(x):
        return x
    limits = jnp.finfo(x.dtype)
    x = jnp.where(jnp.isnan(x), jnp.asarray(0 if nan is None else nan, x.dtype), x)
    highest = jnp.asarray(limits.max if posinf is None else posinf, x.dtype)
    lowest = jnp.asarray(limits.min if neginf is None else neginf, x.dtype)
    return jnp.where(x == jnp.inf, highest, jnp.where(x == -jnp.inf, lowest, x))
