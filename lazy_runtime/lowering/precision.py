"""How precisely float32 matrices are multiplied, and convolved.

One setting, torch's: full float32 unless `torch.set_float32_matmul_precision` lowers it. PyTorch/XLA's functions of its
own name set the same. The level belongs to a recorded call, so a program keeps the one that it was recorded under, and
another level is another program.
"""

from __future__ import annotations

from typing import Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..compat.torch import get_float32_matmul_precision
from ..ir import lowering_context
from ..ir.lowering_context import Level

XLALevel = Literal["highest", "high", "default"]

_TO_JAX: dict[str, jax.lax.Precision] = {
    "highest": jax.lax.Precision.HIGHEST,
    "high": jax.lax.Precision.HIGH,
    "medium": jax.lax.Precision.DEFAULT,
}
_NARROWABLE = frozenset(map(np.dtype, (jnp.float32, jnp.complex64)))


def level() -> Level:
    """The level that is set now."""
    try:
        return cast(Level, get_float32_matmul_precision())
    except RuntimeError:  # set for single libraries (`torch.backends.cuda.matmul.fp32_precision`), none of which is XLA
        return "highest"


def get_mat_mul_precision() -> XLALevel:
    """The level by PyTorch/XLA's names (`torch_xla.backends.get_mat_mul_precision`)."""
    found = level()
    return "default" if found == "medium" else found


def set_mat_mul_precision(precision: XLALevel) -> None:
    """Sets the level by PyTorch/XLA's names (`torch_xla.backends.set_mat_mul_precision`).

    Args:
        precision: "highest" is float32, which is also what is set at the start; "high" and "default" are what the
            device has that is faster: three and one bfloat16 products on TPUs, TF32 on GPUs. CPUs have nothing faster.

    Raises:
        ValueError: any other name.
    """
    if precision not in ("highest", "high", "default"):
        raise ValueError(f"precision must be 'highest', 'high' or 'default', got {precision!r}")
    torch.set_float32_matmul_precision("medium" if precision == "default" else precision)


def of(dtype: np.dtype) -> jax.lax.Precision | None:
    """XLA's precision for products of `dtype` in the call that is being lowered, whose operator must be registered with
    `products=True`: for all others it is that of "highest".
    """
    return _TO_JAX[lowering_context.current().precision] if dtype in _NARROWABLE else None
