"""What the choice of a kernel for a matrix product depends on."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ...ir import lowering_context
from ...lowering.layout import Widened
from ..kernels import Refused, Verdict, sizes


class MatmulProblem(NamedTuple):
    """A product x @ y of two matrices, or of two batches of them.

    Attributes:
        x, y: sizes, whichever way the operands lie in memory. A size that varies from call to call is -1.
        dtype, y_dtype: names of the operands' dtypes, the second as it lies in memory.
        platform: where it is computed.
        between_kernels: the program calls kernels that are no products, which keep the processor's threads awake.
        kept_on: type of the device that keeps the second operand from call to call; empty if none does.
        refuses_packing: why the program around the product has no place for a packed weight; empty if it has one.
    """

    x: tuple[int, ...]
    y: tuple[int, ...]
    dtype: str
    y_dtype: str
    platform: str
    between_kernels: bool = False
    kept_on: str = ""
    refuses_packing: str = ""

    @classmethod
    def of(cls, x: Any, y: Any, platform: str) -> MatmulProblem:
        """The problem of two operands in a lowering: arrays, or `Transposed` ones; the second may be `Widened`."""
        dtypes = str(x.dtype), str(y.physical.dtype if isinstance(y, Widened) else y.dtype)
        return cls(tuple(x.shape), tuple(y.shape), *dtypes, platform, lowering_context.current().has_other_kernels)

    def __str__(self) -> str:
        converted = "" if self.dtype == self.y_dtype else f", converted from {self.y_dtype},"
        return f"{sizes(self.x)} by {sizes(self.y)} of {self.dtype}{converted} on {self.platform}"

    @property
    def multiplications(self) -> int:
        """How many numbers the product multiplies."""
        return math.prod(self.x) * self.y[-1]

    @property
    def is_static(self) -> bool:
        """No size varies from call to call."""
        return min((*self.x, *self.y), default=0) >= 0


def is_of_matrices(problem: MatmulProblem) -> Verdict:
    """Whether both operands are matrices of one dtype."""
    return has_one_dtype(problem) and are_matrices(problem)


def are_matrices(problem: MatmulProblem) -> Verdict:
    """Whether both operands are matrices."""
    return len(problem.x) == len(problem.y) == 2 or Refused("the operands are no two matrices")


def has_one_dtype(problem: MatmulProblem) -> Verdict:
    """Whether the operands have the same dtype."""
    return problem.dtype == problem.y_dtype or Refused(f"dtypes differ: {problem.dtype} and {problem.y_dtype}")


def is_float32(problem: MatmulProblem) -> Verdict:
    """Whether the first operand is of float32."""
    return problem.dtype == "float32" or Refused(f"it is for float32, not {problem.dtype}")


def is_large(problem: MatmulProblem, least: int) -> Verdict:
    """Whether a product has enough multiplications for a call out of XLA's program."""
    found = problem.multiplications
    return found >= least or Refused(f"{found:,} multiplications are fewer than {least:,}")
