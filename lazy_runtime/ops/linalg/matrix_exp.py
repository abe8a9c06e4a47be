"""The exponential of matrices."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from ..gradients import with_gradient
from ..registry import op
from .linalg import adjoint
from .matmul import exact_product

#: Up to which 1-norm the Taylor polynomial of degree 16 has a relative error below the dtype's rounding: x**17 / 17!.
_LARGEST = {jnp.dtype(jnp.float32): 2.0, jnp.dtype(jnp.float64): 0.75}
_DEGREE = 16


@op("aten::linalg_matrix_exp")
def linalg_matrix_exp(x):
    """exp(x) = exp(x / 2**s) ** (2**s): matrix products alone, unlike `jax.scipy.linalg.expm`, whose Padé approximants
    need solving and which gives nans from a norm of 2**16 times the bound on.
    """
    return with_gradient(_exponential, lambda cotangent, _, x: (_gradient(cotangent, x),))(x) if x.size else x


def _gradient(cotangent, x):
    """A block of the exponential of `[[x^H, cotangent], [0, x^H]]` (Higham, Functions of Matrices, theorem 3.6)."""
    size = x.shape[-1]
    turned = adjoint(x)
    blocks = jnp.block([[turned, cotangent], [jnp.zeros_like(x), turned]])
    return _exponential(blocks)[..., :size, size:]


def _exponential(x):
    dtype = x.dtype
    x = x.astype(jnp.float32) if dtype.itemsize < 4 else x
    norm = jnp.abs(x).sum(-2).max(-1)
    squarings = jnp.ceil(jnp.log2(norm / _LARGEST[norm.dtype]))
    squarings = jnp.where(jnp.isfinite(norm), jnp.maximum(squarings, 0), 0).astype(jnp.int32)[..., None, None]
    found = _taylor(x * jnp.exp2(-squarings.astype(norm.dtype)).astype(x.dtype))

    def square(number, y):
        return jnp.where(number < squarings, exact_product(y, y), y)

    return jax.lax.fori_loop(0, squarings.max(), square, found).astype(dtype)


def _taylor(x):
    """The Taylor polynomial, by Paterson and Stockmeyer: powers up to the fourth, then Horner's rule in the fourth."""
    step = math.isqrt(_DEGREE)
    powers = [jnp.broadcast_to(jnp.eye(x.shape[-1], dtype=x.dtype), x.shape), x]
    while len(powers) <= step:
        powers.append(exact_product(powers[-1], x))

    def part(first):
        return sum(powers[k] / float(math.factorial(first + k)) for k in range(step))

    y = powers[0] / float(math.factorial(_DEGREE))
    for first in range(_DEGREE - step, -1, -step):
        y = exact_product(y, powers[step]) + part(first)
    return y
