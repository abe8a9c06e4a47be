"""Special functions: error functions, the gamma function's kin, modified Bessel functions of orders 0 and 1."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as scipy

from ..gradients import with_slopes
from ..registry import Promotion, pointwise

INT_TO_FLOAT = Promotion.INT_TO_FLOAT


for _name, _function in {
    "erf": jax.lax.erf,
    "erfc": jax.lax.erfc,
    "erfinv": jax.lax.erf_inv,
    "special_erfcx": scipy.erfcx,
    "special_ndtri": scipy.ndtri,
    "i0": with_slopes(scipy.i0, scipy.i1),
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
    low, high = jnp.where(x < -1, t, 0), jnp.where(x < -1, 0, t)  # beyond, the gradient overflows, and times 0 is nan
    return jnp.where(x < -1, jnp.log(scipy.erfcx(-low) / 2) - low * low, jnp.log1p(-jax.lax.erfc(high) / 2))


@pointwise("aten::lgamma", promotion=INT_TO_FLOAT)
def lgamma(x):
    return with_slopes(jax.lax.lgamma, digamma)(x)


@pointwise("aten::digamma", promotion=INT_TO_FLOAT)
def digamma(x):
    return polygamma(0, x)


@pointwise("aten::polygamma", promotion=INT_TO_FLOAT)
def polygamma(n, x):
    return with_slopes(functools.partial(_polygamma, n), functools.partial(polygamma, n + 1))(x)


def _polygamma(n: int, x: Any) -> Any:
    if n == 0:
        return jnp.where(x == 0, jnp.copysign(jnp.inf, -x), jax.lax.digamma(x))
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
    """Hurwitz's zeta function: the terms up to 9, and Euler's and Maclaurin's formula for the others (Cephes).

    `jax.lax.zeta` takes nine terms, which is too few below 0.
    """
    x, q = _arrays(x, q)
    tiny = jnp.finfo(x.dtype).eps / 2
    total = jnp.power(q, -x)
    pole = (x <= 1) | ((q <= 0) & ((q == jnp.floor(q)) | (x != jnp.floor(x))))

    def is_open(state: Any) -> Any:
        count, end, _, done = state
        return ~done & ((count < 9) | (end <= 9))

    def body(state: Any) -> Any:
        count, end, total, done = state
        more = is_open(state)
        end = jnp.where(more, end + 1, end)
        term = jnp.where(more, jnp.power(end, -x), 0)
        return count + 1, end, total + term, done | (more & (jnp.abs(term) < tiny * jnp.abs(total + term)))

    start = (jnp.asarray(0), q, total, pole | jnp.isnan(x) | jnp.isnan(q))
    _, end, total, done = jax.lax.while_loop(lambda state: is_open(state).any(), body, start)
    term = jnp.power(end, -x)
    rest = term * end / (x - 1) - term / 2
    factor = jnp.ones_like(x)
    for k, coefficient in enumerate(_EULER_MACLAURIN):
        factor = factor * (x + 2 * k)
        term = term / end
        rest = rest + jnp.where(term == 0, 0, factor * term / coefficient)  # the factor may be infinite
        factor = factor * (x + 2 * k + 1)
        term = term / end
    found = jnp.where(done, total, total + rest)
    at_pole = jnp.where((x == 1) | ((x > 1) & (q == jnp.floor(q))), jnp.inf, jnp.nan)
    return jnp.where(pole, at_pole, found)


#: (2k)! / B_2k for k = 1, 2, ...
_EULER_MACLAURIN = (
    12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1.8924375803183791606e9, 7.47242496e10, -2.950130727918164224e12,
    1.1646782814350067249e14, -4.5979787224074726105e15, 1.8152105401943546773e17, -7.1661652561756670113e18,
)  # fmt: skip


@pointwise("aten::special_entr", promotion=INT_TO_FLOAT)
def entr(x):
    return jnp.where(x > 0, -x * jnp.log(x), jnp.where(x == 0, 0, jnp.where(x < 0, -jnp.inf, x)))


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
