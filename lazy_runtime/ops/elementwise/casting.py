"""Conversion between dtypes as torch's CPU kernels do it, and questions about dtypes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def is_float(x: Any) -> bool:
    """Whether an array, or a Python number, is real and inexact."""
    return jnp.issubdtype(jnp.result_type(x), jnp.floating)


def is_complex(x: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jnp.complexfloating)


def is_bool(x: Any) -> bool:
    return jnp.result_type(x) == jnp.bool_


def convert(x: jax.Array, target: np.dtype) -> jax.Array:
    """`x` with another dtype."""
    if x.dtype == target:
        return x
    if jnp.issubdtype(x.dtype, jnp.complexfloating) and not jnp.issubdtype(target, jnp.complexfloating):
        if target == np.bool_:
            return x != 0
        x = jnp.real(x)
    if x.dtype == np.bool_ and jnp.issubdtype(target, jnp.inexact):
        # XLA turns a product with a converted boolean into a choice, which loses 0 * nan and 0 * inf
        return x.astype(jnp.uint8).astype(target)
    if jnp.issubdtype(x.dtype, jnp.floating) and jnp.issubdtype(target, jnp.integer):
        return _truncated(x, target)
    return x.astype(target)


def _truncated(x: jax.Array, target: np.dtype) -> jax.Array:
    """As on x86-64: narrow integers are the low bits of an int32, and what does not fit is the lowest number."""
    if x.dtype.itemsize < 4:  # the limits do not fit into small floats
        x = x.astype(jnp.float32)
    if target == np.uint64:
        half = float(2**63)
        return jnp.where(x < half, _rounded(x, jnp.int64).astype(target), x.astype(target))
    wide = jnp.int32 if target in (np.int8, np.int16, np.uint8, np.uint16, np.int32) else jnp.int64
    return _rounded(x, wide).astype(target)


def _rounded(x: jax.Array, wide: Any) -> jax.Array:
    limits = jnp.iinfo(wide)
    fits = (x > float(limits.min) - 1) & (x < float(limits.max) + 1)
    return jnp.where(fits, jnp.where(fits, x, 0).astype(wide), limits.min)
