"""Matrix products in torch's kernels on the CPU: MKL's of float32 and float64, oneDNN's of bfloat16.

oneDNN's of bfloat16 are two to three times as fast as XLA's own. MKL is at its best on Intel's processors.
"""

from __future__ import annotations

from typing import Any

import jax

from ...common import config
from ...lowering import aten_bridge
from .. import kernels
from ..kernels import Kernel, Refused, Verdict
from .matmul_problem import MatmulProblem, has_one_dtype, is_large

#: Multiplications of bfloat16 that a product must have for a call out of XLA's program to pay.
LEAST_BFLOAT16 = 1 << 20

#: As many of float32 and float64, in MKL.
LEAST_MKL = 1 << 16


def accepts(problem: MatmulProblem) -> Verdict:
    """Whether a product of matrices, or of two batches of them, is worth a call of torch's kernel."""
    return (
        has_one_dtype(problem)
        and (len(problem.x) == len(problem.y) in (2, 3) or Refused("the operands are no matrices, nor batches of them"))
        and takes_dtype(problem.platform, problem.dtype)
        and is_large(problem, LEAST_BFLOAT16 if problem.dtype == "bfloat16" else LEAST_MKL)
    )


def takes_dtype(platform: str, dtype: Any) -> Verdict:
    """Whether products of this dtype, or of the dtype of this name, are torch's."""
    dtype = str(dtype)
    is_for_mkl = dtype in ("float32", "float64") and config.matmul_library() == "torch"
    why = f"products of {dtype} are not torch's on this processor, or XLA_CPU_PRODUCTS says so"
    return kernels.on_cpu(platform) and (dtype == "bfloat16" or is_for_mkl or Refused(why))


def product(x: Any, y: Any, platform: str) -> Any:
    """x @ y of two matrices, or of two batches of them, either of which may be `Transposed`."""
    return call("aten::mm" if x.ndim == 2 else "aten::bmm", [x, y], x, y)


def call(name: str, arguments: list[Any], x: Any, y: Any) -> Any:
    """An operator of torch's, which writes a result of x's rows and y's columns."""
    like = jax.ShapeDtypeStruct((*x.shape[:-1], y.shape[-1]), x.dtype)
    (result,) = aten_bridge.call(f"{name}.out", [*arguments, aten_bridge.RESULT], [like])
    return result


KERNEL = Kernel(
    "ATen",
    accepts,
    product,
    kernels.on_cpu,
    thresholds=lambda: {
        "least multiplications of bfloat16": LEAST_BFLOAT16,
        "least multiplications of float32 and float64": LEAST_MKL,
    },
)
