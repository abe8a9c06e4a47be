"""Airy's function Ai, as in torch's kernel by the rational approximations of the Cephes library (S. L. Moshier,
https://www.netlib.org/cephes).
"""

from __future__ import annotations

import math

import jax.numpy as jnp

from ..registry import Promotion, pointwise
from .bessel import polynomial

_AN = (
    0.346538101525629, 12.007595273964581, 76.27960536152345, 168.08922493463058, 159.75639135016442,
    70.53609068404442, 14.026469116338967, 1.0,
)  # fmt: skip

_AD = (
    0.5675945326387702, 14.75625625848472, 84.51389701414746, 177.31808814540045, 164.2346928715297,
    71.47784008255756, 14.095913560783403, 1.0,
)  # fmt: skip

_AFN = (
    -0.1316963234183318, -0.6264565444319123, -0.6931580360369335, -0.2797799815451191, -0.04919001326095003,
    -0.004062659235948854, -0.0001592764962392621, -2.776491081552329e-06, -1.6778769848911465e-08,
)  # fmt: skip

_AFD = (
    13.356042070655324, 32.682503279522464, 26.736704094149957, 9.187074029072596, 1.4752914677166642,
    0.11568717379518804, 0.004402916416152112, 7.547203482874142e-05, 4.5185009297058035e-07,
)  # fmt: skip

_AGN = (
    0.01973399320916857, 0.39110302961568827, 1.0657989759959559, 0.9391692298166502, 0.35146565610554764,
    0.06338889196289255, 0.005858041130483885, 0.000282851600836737, 6.98793669997261e-06, 8.117892395543892e-08,
    3.415517847659236e-10,
)  # fmt: skip

_AGD = (
    9.30892908077442, 19.835292871831214, 15.564662893286462, 5.476860694229755, 0.9542936116189619,
    0.08645808263523921, 0.004126565238242226, 0.00010125908511650914, 1.1716673321441352e-06, 4.9183457006293e-09,
)  # fmt: skip

#: of the power series; enough for float64 where |x| < 2.09
_TERMS = 20


@pointwise("aten::special_airy_ai", promotion=Promotion.INT_TO_FLOAT)
def airy_ai(x):
    found = jnp.where(x < -2.09, _oscillating(x), jnp.where(x >= 2.09, _decaying(x), _series(x)))
    return jnp.where(jnp.isinf(x), jnp.nan, jnp.where(x > 103.892, 0, found))


def _oscillating(x):
    zeta = -2 * x * jnp.sqrt(-x) / 3
    z = 1 / zeta
    square = z * z
    even = 1 + square * polynomial(_AFN, square) / polynomial(_AFD, square)
    odd = z * polynomial(_AGN, square) / polynomial(_AGD, square)
    phase = zeta + 0.25 * math.pi
    size = 1 / math.sqrt(math.pi) / jnp.sqrt(jnp.sqrt(-x))
    return size * (jnp.sin(phase) * even - jnp.cos(phase) * odd)


def _decaying(x):
    zeta = 2 * x * jnp.sqrt(x) / 3
    ratio = polynomial(_AN, 1 / zeta) / polynomial(_AD, 1 / zeta)
    return 1 / math.sqrt(math.pi) * ratio / (2 * jnp.sqrt(jnp.sqrt(x)) * jnp.exp(zeta))


def _series(x):
    cube = x * x * x
    f_term, g_term = jnp.ones_like(x), x
    f, g = f_term, g_term
    for k in range(3, 3 * _TERMS, 3):
        f_term = f_term * cube / ((k - 1) * k)
        g_term = g_term * cube / (k * (k + 1))
        f, g = f + f_term, g + g_term
    return 0.355028053887817239260 * f - 0.258819403792806798405 * g
