"""The sum over products of three tensors that `nn.Bilinear` is made of."""

from __future__ import annotations

import jax.numpy as jnp

from ...lowering import precision
from ..indexing.reduction import opmath
from ..registry import op


@op("aten::_trilinear", products=True)
def trilinear(x, y, z, expand1, expand2, expand3, sumdim, unroll_dim=1):
    """Each tensor lacks the dimensions of the result that it is expanded by; `sumdim` are summed over."""
    ndim = x.ndim + len(expand1)
    dims = [[d for d in range(ndim) if d not in expand] for expand in (expand1, expand2, expand3)]
    rest = [d for d in range(ndim) if d not in sumdim]
    operands = [part for each in zip(map(opmath, (x, y, z)), dims, strict=True) for part in each]
    return jnp.einsum(*operands, rest, precision=precision.of(opmath(x).dtype)).astype(x.dtype)
