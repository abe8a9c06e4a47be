"""The regularized incomplete gamma functions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..registry import Promotion, pointwise

#: from here on the integral is taken over a piece of the axis; the series of `jax.lax` lose digits, and then do not end
_LARGE = 20
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(32)


@pointwise("aten::igamma", promotion=Promotion.INT_TO_FLOAT)
def igamma(a, x):
    return _by_size(a, x, lower=True)


@pointwise("aten::igammac", promotion=Promotion.INT_TO_FLOAT)
def igammac(a, x):
    return _by_size(a, x, lower=False)


def _by_size(a: Any, x: Any, lower: bool) -> Any:
    dtype = jnp.result_type(a, x)
    a, x = jnp.broadcast_arrays(jnp.asarray(a, dtype), jnp.asarray(x, dtype))
    large = (a >= _LARGE) & (x > 0) & jnp.isfinite(a) & jnp.isfinite(x)
    series = jax.lax.igamma if lower else jax.lax.igammac
    found = series(jnp.where(large, 1, a), jnp.where(large, 1, x))
    found = jnp.where(large, _quadrature(jnp.where(large, a, _LARGE), jnp.where(large, x, _LARGE), lower), found)
    return _with_limits(a, x, found, int(lower))


def _quadrature(a: Any, x: Any, lower: bool) -> Any:
    """Gauss-Legendre quadrature from x into the nearer tail (W. H. Press et al., Numerical Recipes, 3rd ed., 6.2).

    All is said relative to the peak at a - 1, so that nothing cancels and no power overflows.
    """
    peak = a - 1
    root = jnp.sqrt(peak)
    above = x > peak
    offset = x - peak
    length = jnp.where(
        above,
        jnp.maximum(13 * root - offset, 6 * jnp.sqrt(x)),
        jnp.maximum(-x, jnp.minimum(-offset - 9 * root, -5 * root)),
    )
    nodes, weights = (jnp.asarray(values / 2, a.dtype) for values in (_NODES + 1, _WEIGHTS))

    def add(number: Any, total: Any) -> Any:
        u = (offset + length * nodes[number]) / peak
        return total + weights[number] * jnp.exp(-peak * _less_log1p(u))

    total = jax.lax.fori_loop(0, len(_NODES), add, jnp.zeros_like(a))
    stirling = (1 / 12 - (1 / 360 - (1 / 1260 - 1 / (1680 * peak * peak)) / (peak * peak)) / (peak * peak)) / peak
    tail = jnp.abs(total * length) * jnp.exp(-stirling) / jnp.sqrt(2 * jnp.pi * peak)
    return jnp.where(above != lower, tail, 1 - tail)


def _less_log1p(u: Any) -> Any:
    """u - log1p(u), by a series near 0."""
    s = u / (2 + u)
    z = s * s
    series = jnp.zeros_like(u)
    for k in reversed(range(1, 17)):
        series = series * z + 1 / (2 * k + 1)
    return jnp.where(jnp.abs(u) < 0.5, s * (u - 2 * z * series), u - jnp.log1p(u))


def _with_limits(a: Any, x: Any, found: Any, whole: int) -> Any:
    """`found` and, where an argument is 0 or infinite, the limits: `whole` at x = inf, and 1 - `whole` at x = 0."""
    found = jnp.where(jnp.isinf(x), whole, found)
    found = jnp.where(jnp.isinf(a), jnp.where(jnp.isinf(x), jnp.nan, 1 - whole), found)
    found = jnp.where(x == 0, 1 - whole, found)
    found = jnp.where(a == 0, jnp.where(x > 0, whole, jnp.nan), found)
    return jnp.where((x < 0) | (a < 0), jnp.nan, found)
