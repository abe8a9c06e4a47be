"""Matrix products of float32 in oneDNN's kernel for linear layers, on AMD's processors.

It is called between other kernels only: their workers take from XLA's threads the cores that XLA's product would need.
"""

from __future__ import annotations

from typing import Any

import jax

from ...common import config
from ...lowering import aten_bridge
from ...lowering.layout import Transposed
from .. import kernels
from ..kernels import Kernel, Refused, Verdict
from .matmul_problem import MatmulProblem, is_float32, is_large, is_of_matrices

#: Multiplications that a product must have for a call out of XLA's program to pay.
LEAST = 1 << 20


def accepts(problem: MatmulProblem) -> Verdict:
    """Whether a product of two matrices is worth a call of oneDNN's kernel."""
    return (
        is_of_matrices(problem)
        and is_float32(problem)
        and (problem.between_kernels or Refused("the program calls no kernels but products"))
        and (problem.x[0] != 1 or Refused("it has a single row"))
        and is_large(problem, LEAST)
        and available(problem.platform)
    )


def available(platform: str) -> Verdict:
    """Whether products are oneDNN's on this processor."""
    return kernels.on_cpu(platform) and (
        config.matmul_library() == "onednn"
        or Refused("it is for AMD's processors, where XLA_CPU_PRODUCTS says nothing")
    )


def product(x: Any, y: Any, platform: str) -> Any:
    """x @ y, either of which may be `Transposed`: a weight of any order is as good as that of a linear layer."""
    weight = y.physical if isinstance(y, Transposed) else Transposed(y)
    like = jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), x.dtype)
    (result,) = aten_bridge.call("mkldnn::_linear_pointwise", [x, weight, None, "none", [], None], [like])
    return result


KERNEL = Kernel("oneDNN", accepts, product, available, thresholds=lambda: {"least multiplications": LEAST})
