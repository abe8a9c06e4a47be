"""Matrix products. float32 is multiplied at float32's precision on every platform unless the user lowers it.

On the CPU bfloat16 is multiplied by torch's kernels (oneDNN), which are two to three times as fast as XLA's own, or in
float32 where that is faster still (`widening.py`). Products of float32 and float64 are torch's on Intel's processors
(MKL); on others XLA's are the faster ones, but on AMD's those of float32 are oneDNN's in programs that call kernels for
something else as well (docs/design/028-matmul-library.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ...common import config
from ...compat.torch import tree_map
from ...ir import dtypes
from ...lowering import aten_bridge, precision
from ...lowering.layout import Transposed, logical
from ..registry import op, overload
from . import bfloat16_upcast, skinny_matmul, small_k_matmul

#: Multiplications that a product must have for a call out of XLA's program to pay.
SMALLEST_CALL = 1 << 20
SMALLEST_CALL_OF_MKL = 1 << 16


#: Kernels of ours for products that neither torch's nor XLA's compute at the memory's speed.
KERNELS = (skinny_matmul, small_k_matmul)


def are_torchs(platform: str, dtype: Any) -> bool:
    """Whether products of this dtype are torch's."""
    if platform != "cpu" or not aten_bridge.available():
        return False
    return dtype == jnp.bfloat16 or (dtype in (jnp.float32, jnp.float64) and config.products_are_torchs())


def takes_turned(platform: str, dtype: Any) -> bool:
    """Whether there are products of this dtype, torch's or ours, that take matrices `Transposed`, as they lie; where it
    is XLA that multiplies them, it does as well.
    """
    return are_torchs(platform, dtype) or _may_be_ours(platform, dtype)


def _may_be_ours(platform: str, dtype: Any) -> bool:
    return platform == "cpu" and dtype == jnp.float32 and aten_bridge.available()


def product(x, y, dtype=None):
    """x @ y at the precision that the user has set.

    Args:
        dtype: of the result, if not that of `x`.
    """
    x, y = logical(x), logical(y)
    if y.ndim == 2 and x.ndim > 1 and math.prod(x.shape[:-1]) == 1:
        # of one row and a weight as `linear` has it, XLA:CPU would bring all of the weight into the other order first
        return product(y.T, x.reshape(-1), dtype or x.dtype).reshape(*x.shape[:-1], y.shape[1])
    if x.dtype == jnp.bool_ or jnp.issubdtype(x.dtype, jnp.integer):
        return jnp.matmul(x, y, preferred_element_type=dtype or x.dtype)
    return jnp.matmul(x, y, precision=precision.of(x.dtype), preferred_element_type=dtype)


def of_matrices(x, y, platform: str):
    """x @ y of two matrices, or of two batches of them, either of which may be `Transposed`."""
    kernel = _kernel(x, y, platform)
    if kernel is not None:
        return kernel.product(x, y)
    if _calls_aten(x, y, platform):
        if bfloat16_upcast.is_wanted(platform, x.dtype):
            return of_matrices(bfloat16_upcast.widened(x), bfloat16_upcast.widened(y), platform).astype(x.dtype)
        return _by_aten("aten::mm" if x.ndim == 2 else "aten::bmm", [x, y], x, y)
    if _calls_onednn(x, y, platform):
        return _by_onednn(x, y)
    return product(x, y)


def _kernel(x, y, platform: str) -> Any:
    """Which of `KERNELS` is to compute a product; None if none is."""
    if x.dtype != y.dtype or x.ndim != 2 or y.ndim != 2 or not _may_be_ours(platform, x.dtype):
        return None
    return next((kernel for kernel in KERNELS if kernel.pays(x, y)), None)


def _calls_aten(x, y, platform: str) -> bool:
    """Whether a product of matrices, or of two batches of them, is worth a call of torch's kernel."""
    if x.dtype != y.dtype or x.ndim != y.ndim or x.ndim not in (2, 3) or not are_torchs(platform, x.dtype):
        return False
    least = SMALLEST_CALL if x.dtype == jnp.bfloat16 else SMALLEST_CALL_OF_MKL
    return math.prod(x.shape) * y.shape[-1] >= least


def _calls_onednn(x, y, platform: str) -> bool:
    """Whether a product of two matrices is worth a call of oneDNN's kernel for linear layers: between other kernels,
    whose workers take from XLA's threads the cores that its own product would need.
    """
    if (
        not aten_bridge.has_other_kernels()
        or x.ndim != 2
        or y.ndim != 2
        or x.shape[0] == 1
        or not x.dtype == y.dtype == jnp.float32
    ):
        return False
    if math.prod(x.shape) * y.shape[-1] < SMALLEST_CALL:
        return False
    return platform == "cpu" and aten_bridge.available() and config.products_are_onednns()


def _by_onednn(x, y):
    """x @ y, either of which may be `Transposed`: a weight of any order is as good as that of a linear layer."""
    weight = y.physical if isinstance(y, Transposed) else Transposed(y)
    like = jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), x.dtype)
    (result,) = aten_bridge.call("mkldnn::_linear_pointwise", [x, weight, None, "none", [], None], [like])
    return result


def _by_aten(name, arguments, x, y):
    like = jax.ShapeDtypeStruct((*x.shape[:-1], y.shape[-1]), x.dtype)
    (result,) = aten_bridge.call(f"{name}.out", [*arguments, aten_bridge.RESULT], [like])
    return result


def linear_product(x, weight, platform: str):
    """What `linear` multiplies: the last dimension of `x` with that of the weight."""
    x, weight = logical(x), logical(weight)
    rows = x.reshape(-1, x.shape[-1])
    if weight.ndim == 2:
        turned = Transposed(weight)
        is_called = _calls_aten(rows, turned, platform) or _calls_onednn(rows, turned, platform)
        if is_called or _kernel(rows, turned, platform) is not None:
            return of_matrices(rows, turned, platform).reshape(*x.shape[:-1], weight.shape[0])
    return product(x, weight.T)


def exact_product(x, y):
    """x @ y at full precision whatever the user has set: for what is part of another computation."""
    return jnp.matmul(x, y, precision="highest")


def not_of_bool(name: str) -> Callable[..., Any]:
    """What to infer by for an operator whose CPU kernel has no bool, which the meta kernels do not tell."""
    target = overload(name)
    assert target is not None

    def on_cpu(x: Any) -> Any:
        return torch.zeros((), dtype=x.dtype, device="cpu").expand(x.shape) if isinstance(x, torch.Tensor) else x

    def infer(*args: Any, **kwargs: Any) -> Any:
        if args[0].dtype == torch.bool:
            target(*tree_map(on_cpu, args), **kwargs)
        return target(*args, **kwargs)

    return infer


def _product_op(*names: str) -> Callable[[Callable], Callable]:
    def register(function: Callable) -> Callable:
        for name in names:
            op(name, products=True, transposed=True, infer=not_of_bool(name))(function)
        return function

    return register


@_product_op("aten::mm", "aten::bmm", "aten::mv", "aten::dot", "aten::matmul")
def mm(x, y, *, out):
    return of_matrices(x, y, out.device.platform)


@_product_op("aten::vdot")
def vdot(x, y):
    return product(jnp.conj(x), y)


@op("aten::_int_mm", products=True)
def int_mm(x, y):
    return product(x, y, jnp.int32)


def _wide(x) -> Any:
    """The dtype that a product is added up and scaled in, before it is rounded once."""
    return jnp.float32 if x.dtype in (jnp.float16, jnp.bfloat16) else x.dtype


def _wide_product(x, y, platform: str):
    """x @ y in the dtype that it is added up in."""
    wide = _wide(x)
    if bfloat16_upcast.is_wanted(platform, x.dtype) and _calls_aten(x, y, platform):
        x, y = bfloat16_upcast.widened(x), bfloat16_upcast.widened(y)
    return of_matrices(x, y, platform) if x.dtype == wide else product(x, y, wide)


def _sum(x, y, beta, alpha, out):
    """beta x + alpha y, as `out` is."""
    if jnp.issubdtype(y.dtype, jnp.integer):  # torch casts the factors to the tensors' dtype first
        beta, alpha = (np.asarray(int(factor)).astype(y.dtype) for factor in (beta, alpha))
    y = y if alpha == 1 else alpha * y
    if beta != 0:  # which ignores x, even its nans (torch's documentation of addmm)
        x = logical(x).astype(y.dtype)
        y = (x if beta == 1 else beta * x) + y
    return jnp.broadcast_to(y, out.shape).astype(dtypes.to_numpy(out.dtype))


@_product_op("aten::addmm", "aten::addmv")
def addmm(x, first, second, *, beta=1, alpha=1, out):
    if alpha == 0:  # as in BLAS, nans in the product do not count
        shape = (*first.shape[:-1], *second.shape[1:])
        return _sum(x, jnp.zeros(shape, _wide(first)), beta, 1, out)
    platform = out.device.platform
    whole = isinstance(beta, int) and beta == alpha == 1 and x.dtype == first.dtype
    whole = whole and first.dtype != _wide(first) and not bfloat16_upcast.is_wanted(platform, first.dtype)
    if whole and _calls_aten(first, second, platform):
        return _by_aten("aten::addmm", [logical(x), first, second, 1, 1], first, second)
    return _sum(x, _wide_product(first, second, platform), beta, alpha, out)  # XLA adds with what follows


@_product_op("aten::baddbmm")
def baddbmm(x, first, second, *, beta=1, alpha=1, out):
    return _sum(x, _wide_product(first, second, out.device.platform), beta, alpha, out)


@_product_op("aten::addbmm")
def addbmm(x, first, second, *, beta=1, alpha=1, out):
    first, second = logical(first), logical(second)
    batch, rows, inner = first.shape
    # the sum over the batch is one more inner dimension
    first = jnp.swapaxes(first, 0, 1).reshape(rows, batch * inner)
    second = second.reshape(batch * inner, second.shape[-1])
    return _sum(x, product(first, second, _wide(first)), beta, alpha, out)


@op("aten::addr")
def addr(x, first, second, *, beta=1, alpha=1, out):
    if out.dtype == torch.bool:
        y = jnp.logical_and(first[:, None], second) if alpha else jnp.zeros(out.shape, bool)
        return jnp.logical_or(x, y) if beta else y
    wide = _wide(first)
    return _sum(x, first.astype(wide)[:, None] * second.astype(wide), beta, alpha, out)


@_product_op("aten::linear")
def linear(x, weight, bias=None, *, out):
    y = linear_product(x, weight, out.device.platform)
    return y if bias is None else y + logical(bias)


@op("aten::trace", infer=not_of_bool("aten::trace"))
def trace(x, *, out):
    return jnp.trace(x, dtype=dtypes.to_numpy(out.dtype))


@op("aten::linalg_cross")
def linalg_cross(x, y, *, dim=-1):
    x, y = jnp.broadcast_arrays(x, y)
    # element i is x[i + 1] y[i + 2] - x[i + 2] y[i + 1]
    return jnp.roll(x, -1, dim) * jnp.roll(y, -2, dim) - jnp.roll(x, -2, dim) * jnp.roll(y, -1, dim)
