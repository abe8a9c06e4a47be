"""Special functions: error functions, the gamma function's kin, modified Bessel functions of orders 0 and 1."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as scipy

from .registry import Promotion, pointwise

INT_TO_FLOAT = Promotion.INT_TO_FLOAT


for _name, _function in {
    "erf": jax.lax.erf,
    "erfc": jax.lax.erfc,
    "erfinv": jax.lax.erf_inv,
    "special_erfcx": scipy.erfcx,
    "special_ndtri": scipy.ndtri,
    "special_entr": scipy.entr,
    "lgamma": jax.lax.lgamma,
    "i0": scipy.i0,
    "special_i0e": scipy.i0e,
    "special_i1": scipy.i1,
    "special_i1e": scipy.i1e,
    "special_modified_bessel_i0": scipy.i0,
    "special_modified_bessel_i1": scipy.i1,
}.items():
    pointwise(f"aten::{_name}", promotion=INT_TO_FLOAT)(_function)


@pointwise("aten::special_log_ndtr", promotion=INT_TO_FLOAT)
def log_ndtr(x):
    t = x * math.sqrt(0.5)
    return jnp.where(x < -1, jnp.log(scipy.erfcx(-t) / 2) - t * t, jnp.log1p(-jax.lax.erfc(t) / 2))


@pointwise("aten::digamma", promotion=INT_TO_FLOAT)
def digamma(x):
    return jnp.where(x == 0, jnp.copysign(jnp.inf, -x), jax.lax.digamma(x))


@pointwise("aten::polygamma", promotion=INT_TO_FLOAT)
def polygamma(n, x):
    if n == 0:
        return digamma(x)
    if n == 1:
        return _trigamma(x)
    factorial = math.exp(math.lgamma(n + 1)) * (1 if n % 2 else -1)
    return factorial * zeta(jnp.full_like(x, n + 1), x)


def _trigamma(x: Any) -> Any:
    """As torch's kernel has it: reflection below 1/2, six steps up, and the asymptotic series."""
    reflected = jnp.where(x < 0.5, 1 - x, x)
    found = jnp.zeros_like(x)
    for step in range(6):
        found = found + 1 / (reflected + step) ** 2
    end = reflected + 6
    z = 1 / (end * end)
    found = found + (1 + 1 / (2 * end) + z * (1 / 6 - z * (1 / 30 - z / 42))) / end
    sine = jnp.sin(math.pi * x)
    return jnp.where(x < 0.5, math.pi**2 / (sine * sine) - found, found)


@pointwise(
    "aten::special_zeta",
    "aten::special_zeta.other_scalar",
    "aten::special_zeta.self_scalar",
    promotion=INT_TO_FLOAT,
)
def zeta(x, q):
    return jax.lax.zeta(*_arrays(x, q))


@pointwise("aten::igamma", promotion=INT_TO_FLOAT)
def igamma(a, x):
    return jax.lax.igamma(*_arrays(a, x))


@pointwise("aten::igammac", promotion=INT_TO_FLOAT)
def igammac(a, x):
    return jax.lax.igammac(*_arrays(a, x))


@pointwise("aten::xlogy.Tensor", "aten::xlogy.Scalar_Other", "aten::xlogy.Scalar_Self", promotion=INT_TO_FLOAT)
def xlogy(x, y):
    x, y = _arrays(x, y)
    return jnp.where((x == 0) & ~jnp.isnan(y), 0.0, x * jnp.log(y))


@pointwise(
    "aten::special_xlog1py",
    "aten::special_xlog1py.other_scalar",
    "aten::special_xlog1py.self_scalar",
    promotion=INT_TO_FLOAT,
)
def xlog1py(x, y):
    x, y = _arrays(x, y)
    return jnp.where((x == 0) & ~jnp.isnan(y), 0.0, x * jnp.log1p(y))


def _arrays(x: Any, y: Any) -> tuple[jax.Array, jax.Array]:
    dtype = jnp.result_type(x, y)
    x, y = jnp.broadcast_arrays(jnp.asarray(x, dtype), jnp.asarray(y, dtype))
    return x, y
