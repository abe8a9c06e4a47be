"""Complex numbers: their parts, and making them."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from ..registry import Promotion, checked_dtypes, op, pointwise
from .casting import is_complex, is_float


@pointwise("aten::real", promotion=Promotion.COMPLEX_TO_FLOAT)
def real(x):
    return jnp.real(x)


@op("aten::_conj", view=True)
def conj(x):
    return jnp.conj(x)


@pointwise("aten::_conj_physical", "aten::conj_physical")
def conj_physical(x):
    return jnp.conj(x)


@op("aten::_neg_view", view=True)
def neg_view(x):
    return -x


@op("aten::complex", infer=checked_dtypes("aten::complex"))
def make_complex(real, imag):
    return jax.lax.complex(*jnp.broadcast_arrays(real, imag))


@op("aten::polar")
def polar(size, angle):
    size, angle = jnp.broadcast_arrays(size, angle)
    return jax.lax.complex(size * jnp.cos(angle), size * jnp.sin(angle))


@pointwise("aten::angle", promotion=Promotion.INT_TO_FLOAT)
def angle(x):
    if is_complex(x):
        return jnp.arctan2(x.imag, x.real)
    assert is_float(x)
    return jnp.where(jnp.isnan(x), x, jnp.where(x < 0, math.pi, 0.0).astype(x.dtype))
