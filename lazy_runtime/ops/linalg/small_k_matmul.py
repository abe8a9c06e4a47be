"""Products of a tall matrix and a wide one with few numbers between them, on the CPU in a kernel of ours
(native/small_k_matmul.cpp): gradients of large linear layers' weights, of small batches.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import torch

from ...lowering import aten_bridge
from ...lowering.layout import Transposed, logical
from .. import kernels
from ..kernels import Kernel, Refused, Verdict
from .matmul_problem import MatmulProblem, is_float32, is_of_matrices

#: Terms of a sum up to which the result's memory counts, not the products.
MOST_TERMS = 8

#: Numbers of the result from which on the caches do not hold it anyway.
LEAST = 1 << 20

#: Columns in a vector of the processor's, of which the kernel takes whole ones.
LANES = 16


def accepts(problem: MatmulProblem) -> Verdict:
    """Whether the kernel computes the product, and faster than MKL's and XLA's."""
    return is_of_matrices(problem) and is_float32(problem) and _fits(problem) and available(problem.platform)


def _fits(problem: MatmulProblem) -> Verdict:
    (rows, terms), (_, columns) = problem.x, problem.y
    return (
        (0 < terms <= MOST_TERMS or Refused(f"a sum has {terms} terms, not 1 to {MOST_TERMS}"))
        and (rows * columns >= LEAST or Refused(f"the result has fewer than {LEAST:,} numbers"))
        and (columns % LANES == 0 or Refused(f"{columns} columns are no multiple of {LANES}"))
    )


def available(platform: str) -> Verdict:
    """Whether the kernel is there."""
    return kernels.on_cpu(platform) and kernels.has_wide_vectors() and kernels.works(_is_built, "small_k_matmul")


@functools.cache
def _is_built() -> bool:
    if not kernels.has_wide_vectors():
        return False
    ones, result = torch.ones(2, 3), torch.empty(4 * LANES)
    aligned = result[-result.data_ptr() // 4 % LANES :][: 3 * LANES].view(3, LANES)

    def is_right(kernel: Any) -> bool:
        kernel(ones, torch.ones(2, LANES), out=aligned)
        return torch.equal(aligned, torch.full((3, LANES), 2.0))

    return aten_bridge.kernel_works("small_k_matmul", is_right)


def product(x: Any, y: Any, platform: str) -> Any:
    """x @ y, either of which may be `Transposed`."""
    turned = x.physical if isinstance(x, Transposed) else x.T
    like = jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), x.dtype)
    operands = [turned, logical(y), aten_bridge.RESULT]
    (made,) = aten_bridge.call("lazy_runtime_kernels::small_k_matmul", operands, [like])
    return made


KERNEL = Kernel(
    "small k",
    accepts,
    product,
    available,
    thresholds=lambda: {
        "most terms of a sum": MOST_TERMS,
        "least numbers of the result": LEAST,
        "columns in multiples of": LANES,
    },
)
