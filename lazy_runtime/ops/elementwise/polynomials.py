"""Orthogonal polynomials of a degree per element, by their recurrences (https://pytorch.org/docs/stable/special.html)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..registry import Promotion, pointwise
from .casting import convert


def _register(name: str, function: Callable[[Any, Any], Any]) -> None:
    """Registers a polynomial: function (x, degrees as int64) → values."""

    def polynomial(x: Any, n: Any) -> Any:
        dtype = jnp.result_type(x, n)
        x, n = jnp.broadcast_arrays(jnp.asarray(x, dtype), jnp.asarray(n, dtype))
        n = convert(n, jnp.dtype(jnp.int64))
        return jnp.where(n < 0, 0, function(x, n))

    names = [f"aten::special_{name}{form}" for form in ("", ".x_scalar", ".n_scalar")]
    pointwise(*names, promotion=Promotion.INT_TO_FLOAT)(polynomial)


def _recurrence(first: Any, n: Any, step: Callable[[Any, Any, Any], Any]) -> Any:
    """P_n from P_0 = 1, P_1 = `first` and `step` (k, P_k, P_k-1) → P_k+1. As long as an element needs it: what has
    become nan stays nan.
    """
    before = jnp.ones_like(first)

    def open_(k: Any, last: Any) -> Any:
        return (k < n) & ~jnp.isnan(last)

    def body(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        k, before, last = state
        more = open_(k, last)
        found = step(k.astype(last.dtype), last, before)
        return k + 1, jnp.where(more, last, before), jnp.where(more, found, last)

    start = (jnp.asarray(1, jnp.int64), before, first)
    _, _, last = jax.lax.while_loop(lambda state: open_(state[0], state[2]).any(), body, start)
    return jnp.where(n == 0, before, last)


# ---- Chebyshev's: the kinds differ in P_1, and in what they are of the angle


def _chebyshev(kind: str, x: Any, n: Any, bound: int) -> Any:
    """Within (-1, 1) and beyond the degree `bound` from the angle, else by the recurrence."""
    closed = (n > bound) & (jnp.abs(x) < 1)
    first = {"t": x, "u": 2 * x, "v": 2 * x - 1, "w": 2 * x + 1}[kind]
    found = _recurrence(
        first, jnp.where(closed | (jnp.abs(x) == 1), 0, n), lambda k, last, before: 2 * x * last - before
    )
    angle = jnp.arccos(jnp.where(closed, x, 0))
    degree = n.astype(x.dtype)
    by_angle = {
        "t": lambda: jnp.cos(degree * angle),
        "u": lambda: jnp.sin((degree + 1) * angle) / jnp.sin(angle),
        "v": lambda: jnp.cos((degree + 0.5) * angle) / jnp.cos(angle / 2),
        "w": lambda: jnp.sin((degree + 0.5) * angle) / jnp.sin(angle / 2),
    }[kind]()
    sign = jnp.where(n % 2 == 0, 1, -1).astype(x.dtype)
    right = {"t": 1, "u": degree + 1, "v": 1, "w": 2 * degree + 1}[kind]
    left = {"t": sign, "u": sign * (degree + 1), "v": sign * (2 * degree + 1), "w": sign}[kind]
    found = jnp.where(closed, by_angle, found)
    return jnp.where(x == 1, right, jnp.where(x == -1, left, found))


for _kind, _bound, _shifted_bound in (("t", 6, 6), ("u", 8, 6), ("v", 8, 6), ("w", 8, 4)):
    _register(
        f"chebyshev_polynomial_{_kind}",
        lambda x, n, kind=_kind, bound=_bound: _chebyshev(kind, x, n, bound),
    )
    _register(
        f"shifted_chebyshev_polynomial_{_kind}",
        lambda x, n, kind=_kind, bound=_shifted_bound: _chebyshev(kind, 2 * x - 1, n, bound),
    )


# ---- the others


def _hermite_limit(x: Any) -> int:
    """The degree beyond which torch gives nan."""
    return 512 if x.dtype == jnp.float64 else 128


def _hermite_h(x: Any, n: Any) -> Any:
    beyond = n > _hermite_limit(x)
    degrees = jnp.where(beyond, 0, n)
    found = _recurrence(2 * x, degrees, lambda k, last, before: 2 * x * last - 2 * k * before)
    return jnp.where(beyond, jnp.nan, found)


def _hermite_he(x: Any, n: Any) -> Any:
    beyond = n > _hermite_limit(x)
    degrees = jnp.where(beyond, 0, n)
    found = _recurrence(x, degrees, lambda k, last, before: x * last - k * before)
    return jnp.where(beyond, jnp.nan, found)


def _laguerre(x: Any, n: Any) -> Any:
    def step(k: Any, last: Any, before: Any) -> Any:
        return ((2 * k + (1 - x)) * last - k * before) / (k + 1)

    return jnp.where(x == 0, 1, _recurrence(1 - x, jnp.where(x == 0, 0, n), step))


def _legendre(x: Any, n: Any) -> Any:
    def step(k: Any, last: Any, before: Any) -> Any:
        return ((2 * k + 1) * x * last - k * before) / (k + 1)

    at_end = jnp.abs(x) == 1
    found = _recurrence(x, jnp.where(at_end, 0, n), step)
    return jnp.where(at_end, jnp.where((x > 0) | (n % 2 == 0), 1, -1), found)


_register("hermite_polynomial_h", _hermite_h)
_register("hermite_polynomial_he", _hermite_he)
_register("laguerre_polynomial_l", _laguerre)
_register("legendre_polynomial_p", _legendre)
