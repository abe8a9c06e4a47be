"""The kernels of matrix products, in the order in which they are asked, and products by them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ...lowering.layout import Transposed, Widened, logical
from .. import kernels
from ..kernels import Kernel, Table, Verdict
from . import bfloat16_upcast, matmul_aten, matmul_onednn, matmul_xla, packed_linear, skinny_matmul, small_k_matmul
from .matmul_problem import MatmulProblem


def matmul(x: Any, y: Any, platform: str) -> Any:
    """x @ y of two matrices or batches of them, either of which may be `Transposed`, and the second `Widened`."""
    if isinstance(y, Widened) and not skinny_matmul.accepts(MatmulProblem.of(x, y, platform)):
        y = y.converted
    return _lower(MATMUL.choose(MatmulProblem.of(x, y, platform)), x, y, platform)


def linear_product(x: Any, weight: Any, platform: str) -> Any:
    """What `linear` multiplies: the last dimension of `x` with that of the weight."""
    x, weight = logical(x), logical(weight)
    rows = x.reshape(-1, x.shape[-1])
    if weight.ndim == 2:
        turned = Transposed(weight)
        kernel = MATMUL.choose(MatmulProblem.of(rows, turned, platform))
        if kernel is not matmul_xla.KERNEL:
            return _lower(kernel, rows, turned, platform).reshape(*x.shape[:-1], weight.shape[0])
    return matmul_xla.product(x, weight.T)


def takes_transposed(platform: str, dtype: Any) -> bool:
    """Whether kernels for this dtype, torch's or ours, take matrices `Transposed`, as they lie. XLA, where it computes
    the product, does as well with them.
    """
    is_ours = dtype == jnp.float32
    is_quantised = dtype == jnp.int8  # which may be converted (`Widened`)
    return bool(matmul_aten.takes_dtype(platform, dtype) or (kernels.on_cpu(platform) and (is_quantised or is_ours)))


def _lower(kernel: Kernel, x: Any, y: Any, platform: str) -> Any:
    assert kernel.lower is not None
    return kernel.lower(x, y, platform)


def _accepts_upcast(problem: MatmulProblem) -> Verdict:
    return bfloat16_upcast.accepts(problem.platform, problem.dtype) and matmul_aten.accepts(problem)


def _upcast(x: Any, y: Any, platform: str) -> Any:
    """The product in float32, by one of the other kernels, rounded once."""
    return matmul(bfloat16_upcast.widened(x), bfloat16_upcast.widened(y), platform).astype(x.dtype)


UPCAST = Kernel(
    "bfloat16 upcast",
    _accepts_upcast,
    _upcast,
    bfloat16_upcast.available,
    thresholds=lambda: {"least multiplications": matmul_aten.LEAST_BFLOAT16},
)

MATMUL = Table(
    "matrix product",
    [
        packed_linear.KERNEL,
        skinny_matmul.KERNEL,
        small_k_matmul.KERNEL,
        UPCAST,
        matmul_aten.KERNEL,
        matmul_onednn.KERNEL,
        matmul_xla.KERNEL,
    ],
)
