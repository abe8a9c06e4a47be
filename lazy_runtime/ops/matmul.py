"""Matrix products. float32 is multiplied at float32's precision on every platform unless the user lowers it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch

from .registry import op


def precision(dtype) -> jax.lax.Precision | None:
    """XLA's precision for products of `dtype`, from `torch.set_float32_matmul_precision`."""
    if dtype != jnp.float32:
        return None
    level = torch.get_float32_matmul_precision()
    return {
        "highest": jax.lax.Precision.HIGHEST,
        "high": jax.lax.Precision.HIGH,
        "medium": jax.lax.Precision.DEFAULT,
    }[level]


def product(x, y):
    """x @ y."""
    if x.dtype == jnp.bool_ or jnp.issubdtype(x.dtype, jnp.integer):
        return jnp.matmul(x, y).astype(x.dtype)
    return jnp.matmul(x, y, precision=precision(x.dtype))


@op("aten::mm", "aten::bmm", "aten::mv", "aten::dot", "aten::matmul")
def mm(x, y):
    return product(x, y)


@op("aten::vdot")
def vdot(x, y):
    return product(jnp.conj(x), y)


def _added(x, y, beta, alpha):
    if jnp.issubdtype(y.dtype, jnp.integer):  # torch casts the factors to the tensors' dtype first
        beta, alpha = int(beta), int(alpha)
    # beta = 0 ignores x, even its nans (torch's documentation of addmm)
    scaled = y if alpha == 1 else (alpha * y).astype(y.dtype)
    if beta == 0:
        return scaled
    return (x if beta == 1 else (beta * x).astype(x.dtype)) + scaled


@op("aten::addmm", "aten::addmv", "aten::baddbmm")
def addmm(x, first, second, *, beta=1, alpha=1, out):
    return jnp.broadcast_to(_added(x, product(first, second), beta, alpha), out.shape)


@op("aten::addbmm")
def addbmm(x, first, second, *, beta=1, alpha=1, out):
    return jnp.broadcast_to(_added(x, product(first, second).sum(0), beta, alpha), out.shape)


@op("aten::addr")
def addr(x, first, second, *, beta=1, alpha=1, out):
    return jnp.broadcast_to(_added(x, jnp.outer(first, second), beta, alpha), out.shape)


@op("aten::linear")
def linear(x, weight, bias=None):
    y = product(x, weight.T)
    return y if bias is None else y + bias
