"""Products with a kept matrix in oneDNN's order: the row of `packed.packed_linear` among the products' kernels."""

from __future__ import annotations

from typing import Any

import torch

from ..kernels import Kernel, Packing, Refused, Verdict
from . import packed
from .matmul_problem import MatmulProblem, has_one_dtype, is_large

#: Multiplications that a product must have for a call out of XLA's program to pay.
LEAST = 1 << 20


def accepts(problem: MatmulProblem) -> Verdict:
    """Whether the kept matrix can be packed, and the product is worth a call."""
    return (
        (bool(problem.kept_on) or Refused("the matrix is not kept from call to call"))
        and (not problem.refuses_packing or Refused(problem.refuses_packing))
        and has_one_dtype(problem)
        and (problem.is_static or Refused("sizes vary from call to call"))
        and (0 not in problem.y or Refused("the matrix is empty"))
        and is_large(problem, LEAST)
        and packed.accepts(problem.platform, problem.dtype)
    )


def _arguments(problem: MatmulProblem, matrix: torch.Tensor) -> tuple[Any, ...]:
    rows = problem.x[0]
    return packed.packed_matrix(matrix, rows), rows


KERNEL = Kernel(
    "oneDNN, packed matrix",
    accepts,
    available=packed.available_at_all,
    thresholds=lambda: {"least multiplications": LEAST},
    packing=Packing(
        torch.ops.lazy_runtime.pack_matrix.default,
        torch.ops.lazy_runtime.packed_linear.default,
        packed.room,
        _arguments,
        in_bytes=True,
        upcasts=True,
    ),
)
