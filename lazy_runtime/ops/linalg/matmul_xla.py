"""Matrix products in XLA, which take every operand."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp

from ...lowering import precision
from ...lowering.layout import logical
from ..kernels import Kernel, Verdict
from .matmul_problem import MatmulProblem


def product(x, y, dtype=None):
    """x @ y at the precision that the user has set.

    Args:
        dtype: of the result, if not that of `x`.
    """
    x, y = logical(x), logical(y)
    if y.ndim == 2 and x.ndim > 1 and math.prod(x.shape[:-1]) == 1:
        # of one row and a weight as `linear` has it, XLA:CPU would bring all of the weight into the other order first
        return product(y.T, x.reshape(-1), dtype or x.dtype).reshape(*x.shape[:-1], y.shape[1])
    if x.dtype == jnp.bool_ or jnp.issubdtype(x.dtype, jnp.integer):
        return jnp.matmul(x, y, preferred_element_type=dtype or x.dtype)
    return jnp.matmul(x, y, precision=precision.of(x.dtype), preferred_element_type=dtype)


def accepts(problem: MatmulProblem) -> Verdict:
    """Every product."""
    return True


def _lower(x: Any, y: Any, platform: str) -> Any:
    return product(x, y)


KERNEL = Kernel("XLA", accepts, _lower)
