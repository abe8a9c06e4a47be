"""Products of a few rows with a large matrix, on the CPU in a kernel of ours (native/skinny_matmul.cpp).

Linear layers of small batches have them, forward and in the gradient of their input, and of tokens that are decoded.
The matrix is read once, at the memory's speed. One of int8 is converted in registers: a quarter of the bytes.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import torch

from ...lowering import aten_bridge
from ...lowering.layout import Transposed, Widened, logical
from .. import kernels
from ..kernels import Kernel, Refused, Verdict
from .matmul_problem import MatmulProblem, are_matrices, has_one_dtype

#: Rows that are multiplied while the matrix is read once.
ROWS = range(1, 9)

#: Numbers of the matrix from which on a first level of a cache does not hold it.
LEAST = 1 << 17

_DTYPES = ("float32", "bfloat16")


def accepts(problem: MatmulProblem) -> Verdict:
    """Whether the kernel computes the product, and faster than MKL's and XLA's."""
    return (
        are_matrices(problem)
        and (problem.dtype in _DTYPES or Refused(f"it is for float32 and bfloat16, not {problem.dtype}"))
        and (problem.y_dtype == "int8" or has_one_dtype(problem))
        and (problem.x[0] in ROWS or Refused(f"{problem.x[0]} rows are not {ROWS[0]} to {ROWS[-1]}"))
        and (math.prod(problem.y) >= LEAST or Refused(f"the matrix has fewer than {LEAST:,} numbers"))
        and available(problem.platform)
    )


def available(platform: str) -> Verdict:
    """Whether the kernel is there."""
    return kernels.on_cpu(platform) and kernels.works(_is_built, "skinny_matmul")


@functools.cache
def _is_built() -> bool:
    def is_right(kernel: Any) -> bool:
        x, matrix, out = torch.ones(2, 3), torch.arange(15.0).view(3, 5), torch.empty(2, 5)
        plain = torch.equal(kernel(x, matrix, False, out=out), matrix.sum(0).expand(2, 5))
        return plain and torch.equal(kernel(x, matrix.t().contiguous(), True, out=out), matrix.sum(0).expand(2, 5))

    return aten_bridge.kernel_works("skinny_matmul", is_right)


def product(x: Any, y: Any, platform: str, dtype: Any = None) -> Any:
    """x @ y, either of which may be `Transposed`, and the second `Widened`.

    Args:
        dtype: of the result, which is x's or the float32 that it is added up in; x's if None.
    """
    turned = isinstance(y, Transposed | Widened)
    like = jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), dtype or x.dtype)
    operands = [logical(x), y.physical if turned else y, turned, aten_bridge.RESULT]
    (made,) = aten_bridge.call("lazy_runtime_kernels::skinny_matmul", operands, [like])
    return made


KERNEL = Kernel(
    "skinny",
    accepts,
    product,
    available,
    thresholds=lambda: {"rows": f"{ROWS[0]} to {ROWS[-1]}", "least numbers of the matrix": LEAST},
)
