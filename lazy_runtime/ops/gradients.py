"""Gradients for jax to take in place of its own (`lazy_runtime.jax.function`), where torch has others, or jax has none.

Lazy tensors do without: their gradients are operators of torch's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..ir import dtypes


def with_gradient(compute: Callable[..., Any], gradient: Callable[..., Sequence[Any]]) -> Callable[..., Any]:
    """A function of arrays with a gradient of its own, in reverse mode alone.

    Args:
        compute: makes no checks (`lowering/checks.py`), whose values would not leave it.
        gradient: `gradient(cotangent, result, *operands)` gives the gradients of the first operands; the others,
            integers among them, have none. Those of complex numbers are as torch has them, conjugates of jax's.
    """
    made = jax.custom_vjp(compute)

    def forward(*operands: Any) -> Any:
        result = compute(*operands)
        return result, (operands, result)

    def backward(kept: Any, cotangent: Any) -> tuple[Any, ...]:
        operands, result = kept
        with dtypes.x64():  # jax asks for it when it likes
            found = _conjugate(gradient(_conjugate(cotangent), result, *operands))
        return (*found, *(None for _ in operands[len(found) :]))

    made.defvjp(forward, backward)
    return made


def _conjugate(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.conj(x) if jnp.iscomplexobj(x) else x, tree)


def with_slopes(compute: Callable[..., Any], *slopes: Callable[..., Any] | None) -> Callable[..., Any]:
    """An elementwise function of real numbers with derivatives of its own, in both modes.

    Args:
        compute: of operands that have one shape.
        slopes: for each operand the derivative, a function of all operands; None for zero.
    """

    def rule(slope: Callable[..., Any]) -> Callable[..., Any]:
        def of_tangent(tangent: Any, _: Any, *operands: Any) -> Any:
            with dtypes.x64():
                return tangent * slope(*operands)

        return of_tangent

    made = jax.custom_jvp(compute)
    made.defjvps(*(None if slope is None else rule(slope) for slope in slopes))
    return made


def root(x: Any, order: float = 2) -> Any:
    """The root of what is not negative. At 0 its derivative is 0, as that of norms and distances is."""

    def compute(x: Any) -> Any:
        return jnp.sqrt(x) if order == 2 else x ** (1 / order)

    def slope(x: Any) -> Any:
        safe = jnp.where(x == 0, 1, x)
        return jnp.where(x == 0, 0, compute(safe) / (order * safe))

    return with_slopes(compute, slope)(x)


def absolute(x: Any) -> Any:
    """The size of real or complex numbers. At 0 its derivative is 0."""
    return jnp.abs(x) if jnp.iscomplexobj(x) else with_slopes(jnp.abs, jnp.sign)(x)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def hermitian(x: Any, upper: bool = False) -> Any:
    """The Hermitian matrices of which `x` has one triangle. Their gradients are Hermitian too."""
    lower = jnp.tril(_adjoint(x) if upper else x, -1)
    diagonal = jnp.where(jnp.eye(x.shape[-1], dtype=bool), x.real, 0)
    return lower + _adjoint(lower) + diagonal


@hermitian.defjvp
def _hermitian_tangent(upper: bool, operands: Any, tangents: Any) -> tuple[Any, Any]:
    (x,), (tangent,) = operands, tangents
    return hermitian(x, upper), (tangent + _adjoint(tangent)) / 2


def _adjoint(x: Any) -> Any:
    return jnp.conj(jnp.swapaxes(x, -2, -1))
