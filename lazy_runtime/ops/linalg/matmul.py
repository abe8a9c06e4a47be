"""Matrix products. float32 is multiplied at float32's precision on every platform unless the user lowers it.

Which kernel multiplies stands in `matmul_kernels.py`, and why in docs/kernels.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

from ...compat.torch import tree_map
from ...ir import dtypes
from ...lowering.layout import logical
from ..registry import op, overload
from . import bfloat16_upcast, matmul_aten, skinny_matmul
from .matmul_kernels import MATMUL, linear_product, matmul
from .matmul_problem import MatmulProblem
from .matmul_xla import product


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


def _product_op(*names: str, widened: bool = False) -> Callable[[Callable], Callable]:
    def register(function: Callable) -> Callable:
        for name in names:
            op(name, products=True, transposed=True, widened=widened, infer=not_of_bool(name))(function)
        return function

    return register


@_product_op("aten::mm", "aten::bmm", "aten::mv", "aten::dot", "aten::matmul", widened=True)
def mm(x, y, *, out):
    return matmul(x, y, out.device.platform)


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
    if x.dtype == jnp.bfloat16 and _is_skinny(x, y, platform):
        return skinny_matmul.product(x, y, platform, wide)
    if bfloat16_upcast.is_wanted(platform, x.dtype) and _is_atens(x, y, platform):
        x, y = bfloat16_upcast.widened(x), bfloat16_upcast.widened(y)
    return matmul(x, y, platform) if x.dtype == wide else product(x, y, wide)


def _is_skinny(x, y, platform: str) -> bool:
    """Whether the kernel that gives what it has added up, not rounded yet, is the product's."""
    problem = MatmulProblem.of(x, y, platform)
    return bool(skinny_matmul.accepts(problem)) and MATMUL.choose(problem) is skinny_matmul.KERNEL


def _is_atens(x, y, platform: str) -> bool:
    """Whether torch's kernel takes the product, whichever kernels come before it."""
    return bool(matmul_aten.accepts(MatmulProblem.of(x, y, platform)))


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
    problem = MatmulProblem.of(first, second, platform)
    if whole and matmul_aten.accepts(problem) and not skinny_matmul.accepts(problem):
        return matmul_aten.call("aten::addmm", [logical(x), first, second, 1, 1], first, second)
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
