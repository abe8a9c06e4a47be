"""Products of a tall matrix and a wide one with few numbers between them, on the CPU in a kernel of ours
(native/outer_products.cpp): gradients of large linear layers' weights, of small batches.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import torch

from ...lowering import aten_bridge
from ...lowering.layout import Transposed, logical

#: Terms of a sum up to which the result's memory counts, not the products.
MOST_TERMS = 8

#: Numbers of the result from which on the caches do not hold it anyway.
LEAST = 1 << 20

#: Columns in a vector of the processor's, of which the kernel takes whole ones.
LANES = 16


def pays(x: Any, y: Any) -> bool:
    """Whether the kernel takes x @ y, two matrices of float32 on the CPU, and is faster than MKL's and XLA's."""
    if not 0 < x.shape[1] <= MOST_TERMS or x.shape[0] * y.shape[1] < LEAST or y.shape[1] % LANES:
        return False
    return _is_built()


@functools.cache
def _is_built() -> bool:
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    ones, result = torch.ones(2, 3), torch.empty(4 * LANES)
    aligned = result[-result.data_ptr() // 4 % LANES :][: 3 * LANES].view(3, LANES)

    def is_right(kernel: Any) -> bool:
        kernel(ones, torch.ones(2, LANES), out=aligned)
        return torch.equal(aligned, torch.full((3, LANES), 2.0))

    return aten_bridge.kernel_works("outer_products", is_right)


def product(x: Any, y: Any) -> Any:
    """x @ y, either of which may be `Transposed`."""
    turned = x.physical if isinstance(x, Transposed) else x.T
    like = jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), x.dtype)
    operands = [turned, logical(y), aten_bridge.RESULT]
    (made,) = aten_bridge.call("lazy_runtime_kernels::outer_products", operands, [like])
    return made
