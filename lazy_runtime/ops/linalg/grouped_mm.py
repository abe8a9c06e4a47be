"""Products of groups of matrices that lie one behind the other, as mixtures of experts multiply.

Which rows, columns or terms of the sum belong to a group is data: `offs` has where each group ends. XLA's way,
`ragged_dot`, multiplies everything by every group's matrix on platforms without a kernel for it, so on the CPU torch's
kernel is called, which takes the groups in turn.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch

from ...lowering import aten_bridge, precision
from ...lowering.layout import Transposed, logical
from ..registry import op, overload

#: The kernels want each row to begin at a multiple of so many bytes.
ALIGNMENT = 16


def _infer(x: torch.Tensor, y: torch.Tensor, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> torch.Tensor:
    """Torch's meta kernel knows bfloat16 alone. The CPU's, of groups that are empty, computes nothing."""
    if offs is None and (x.ndim, y.ndim) == (3, 3) and bias is None:
        made = torch.bmm(x, y)
        padded = _aligned(made.shape[2], made.itemsize)
        return made.new_empty_strided(made.shape, (made.shape[1] * padded, padded, 1), dtype=out_dtype or made.dtype)
    kernel: Any = overload("aten::_grouped_mm")
    like = [None if each is None else _on_cpu(each) for each in (x, y, offs, bias)]
    return kernel(*like, out_dtype)


def _aligned(size: int, itemsize: int) -> int:
    """How many elements a row of `size` takes."""
    unit = ALIGNMENT // itemsize
    return -(-size // unit) * unit


def _on_cpu(x: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cpu")
    return made if x.is_floating_point() else made.zero_()


@op("aten::_grouped_mm", infer=_infer, transposed=True)
def grouped_mm(x, y, offs=None, bias=None, out_dtype=None, *, input_spec, out):
    """Row m of the result is that of its group where `x` has two dimensions, column n where `y` has two; if both have,
    there is a result for each group. What belongs to no group, torch leaves as it was in memory; here it is 0.
    """
    dtype = out.struct().dtype
    if offs is not None and input_spec.device.platform == "cpu" and aten_bridge.available():
        return _by_aten(x, y, offs, dtype)
    x, y = logical(x), logical(y)
    if offs is None:
        return jnp.matmul(x, y, precision=precision.of(x.dtype), preferred_element_type=dtype)
    return _by_xla(x, y, offs, dtype)


# ---- torch's kernel


def _by_aten(x, y, offs, dtype):
    rows, columns = x.shape[-2], y.shape[-1]
    groups = (offs.shape[0],) if x.ndim == y.ndim else ()
    x, y = _with_aligned_rows(x), _with_aligned_rows(y)
    if x.ndim + y.ndim > 4 and x.shape[-1] != y.shape[-2]:
        y = _padded(logical(y), y.ndim - 2, x.shape[-1])
    like = jax.ShapeDtypeStruct((*groups, rows, y.shape[-1]), dtype)
    (made,) = aten_bridge.call("aten::_grouped_mm", [x, y, offs.astype(jnp.int32), None, None], [like])
    made = made[..., :columns]
    if groups:
        return made
    position = jnp.arange(rows)[:, None] if x.ndim == 2 else jnp.arange(columns)
    return jnp.where(position < offs[-1], made, 0)


def _with_aligned_rows(x):
    """`x` as the kernel takes it. A transposed one, as the weights of experts are, stays so where it needs no zeros."""
    rows, columns = x.shape[-2:]
    unit = x.dtype.itemsize
    if isinstance(x, Transposed) and rows == _aligned(rows, unit) and columns == _aligned(columns, unit):
        return x
    return _padded(logical(x), x.ndim - 1, _aligned(columns, unit))


def _padded(x, dim: int, size: int):
    """`x` with zeros behind it."""
    if x.shape[dim] == size:
        return x
    return jnp.pad(x, [(0, size - x.shape[n] if n == dim else 0) for n in range(x.ndim)])


# ---- XLA's


def _by_xla(x, y, offs, dtype):
    sizes = jnp.diff(offs.astype(jnp.int32), prepend=0)
    if x.ndim == 3:  # columns in groups: the transposed product has its rows in groups
        return _ragged(y.T, x.transpose(0, 2, 1), sizes, dtype).T
    return _ragged(x, y, sizes, dtype)


def _ragged(x, y, sizes, dtype):
    """Rows in groups where `y` has three dimensions, else the terms of the sums."""
    if y.ndim == 3:
        dimensions = jax.lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), [0], [0])
    else:
        dimensions = jax.lax.RaggedDotDimensionNumbers((((1,), (0,)), ((), ())), [1], [])
    level = precision.of(x.dtype)
    return jax.lax.ragged_dot_general(x, y, sizes, dimensions, precision=level, preferred_element_type=dtype)
