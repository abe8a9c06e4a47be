"""Reductions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ...ir import dtypes
from ...lowering import argmax as places
from ...lowering.layout import ChannelsLast, logical
from ..gradients import absolute, root
from ..registry import op, overload
from .selection import cast


def axes(dim, ndim: int) -> tuple[int, ...]:
    """The axes that torch's `dim` argument means: None and [] are all of them."""
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return tuple(range(ndim))
    dims = dim if isinstance(dim, list | tuple) else [dim]
    return tuple(d % ndim for d in dims) if ndim else ()


def checked_op(*names: str, **options: Any) -> Callable[[Callable], Callable]:
    """`op` for operators of one tensor whose CPU kernel checks more (dtypes, dimensions of 0-d tensors) than their meta
    kernel: it runs on one element, or on none, for its errors.
    """

    def infer_as(name: str) -> Callable[..., Any]:
        def infer(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            target: Any = overload(name)
            target(torch.zeros([min(size, 1) for size in x.shape], dtype=x.dtype, device="cpu"), *args, **kwargs)
            return target(x, *args, **kwargs)

        return infer

    def register(function: Callable) -> Callable:
        for name in names:
            op(name, infer=infer_as(name), **options)(function)
        return function

    return register


def opmath(x):
    """`x` in the dtype that torch accumulates in: float32 for the 16-bit floats."""
    return x.astype(jnp.float32) if x.dtype in (jnp.float16, jnp.bfloat16) else x


@op("aten::sum", "aten::sum.dim_IntList")
def sum_(x, dim=None, keepdim=False, *, dtype=None, out):
    target = dtypes.to_numpy(out.dtype)
    return jnp.sum(opmath(cast(x, out.dtype)), axes(dim, x.ndim), keepdims=keepdim).astype(target)


@op("aten::mean", "aten::mean.dim", channels_last=True)
def mean(x, dim=None, keepdim=False, *, dtype=None, out):
    target = dtypes.to_numpy(out.dtype)
    if isinstance(x, ChannelsLast):
        if sorted(axes(dim, x.ndim)) == list(range(2, x.ndim)):  # over space, as the pooling at a network's end
            space = tuple(range(1, x.ndim - 1))
            y = jnp.mean(opmath(cast(x.physical, out.dtype)), space, keepdims=keepdim).astype(target)
            return ChannelsLast(y) if keepdim else y
        x = logical(x)
    return jnp.mean(opmath(cast(x, out.dtype)), axes(dim, x.ndim), keepdims=keepdim).astype(target)


@op("aten::prod", "aten::prod.dim_int")
def prod(x, dim=None, keepdim=False, *, dtype=None, out):
    target = dtypes.to_numpy(out.dtype)
    return jnp.prod(opmath(cast(x, out.dtype)), axes(dim, x.ndim), keepdims=keepdim).astype(target)


def _infer_variance(name: str) -> Callable[..., Any]:
    def infer(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not (x.is_floating_point() or x.is_complex()):  # the meta kernel lets them pass
            raise RuntimeError(f"{_VARIANCES[name]} only support floating point and complex dtypes")
        return getattr(torch.ops.aten, name).correction(x, *args, **kwargs)

    return infer


_VARIANCES = {"var": "std and var", "std": "std and var", "var_mean": "var_mean", "std_mean": "std_mean"}


def _variance(x, dim, correction, keepdim):
    over = axes(dim, x.ndim)
    count = math.prod(x.shape[d] for d in over)
    correction = 1 if correction is None else correction
    mean = jnp.mean(opmath(x), over, keepdims=True)
    squares = jnp.sum(jnp.square(jnp.abs(opmath(x) - mean)), over, keepdims=keepdim)
    if isinstance(count, int):
        divisor = jnp.asarray(max(count - correction, 0), squares.dtype)
    else:  # a symbolic size
        divisor = jnp.maximum(jnp.asarray(count).astype(squares.dtype) - correction, 0)
    return squares / divisor, mean if keepdim else jnp.squeeze(mean, over)


@op("aten::var.correction", infer=_infer_variance("var"))
def var(x, dim=None, *, correction=None, keepdim=False, out):
    return _variance(x, dim, correction, keepdim)[0].astype(dtypes.to_numpy(out.dtype))


@op("aten::std.correction", infer=_infer_variance("std"))
def std(x, dim=None, *, correction=None, keepdim=False, out):
    return root(_variance(x, dim, correction, keepdim)[0]).astype(dtypes.to_numpy(out.dtype))


@op("aten::var_mean.correction", infer=_infer_variance("var_mean"))
def var_mean(x, dim=None, *, correction=None, keepdim=False, out):
    variance, mean = _variance(x, dim, correction, keepdim)
    return variance.astype(dtypes.to_numpy(out[0].dtype)), mean.astype(dtypes.to_numpy(out[1].dtype))


@op("aten::std_mean.correction", infer=_infer_variance("std_mean"))
def std_mean(x, dim=None, *, correction=None, keepdim=False, out):
    variance, mean = _variance(x, dim, correction, keepdim)
    return root(variance).astype(dtypes.to_numpy(out[0].dtype)), mean.astype(dtypes.to_numpy(out[1].dtype))


@op("aten::amax")
def amax(x, dim=(), keepdim=False):
    return jnp.max(x, axes(dim, x.ndim), keepdims=keepdim)


@op("aten::amin")
def amin(x, dim=(), keepdim=False):
    return jnp.min(x, axes(dim, x.ndim), keepdims=keepdim)


@checked_op("aten::aminmax")
def aminmax(x, *, dim=None, keepdim=False):
    return amin(x, dim, keepdim), amax(x, dim, keepdim)


@checked_op("aten::max")
def max_all(x):
    return jnp.max(x)


@checked_op("aten::min")
def min_all(x):
    return jnp.min(x)


def _with_index(x, dim, keepdim, argument):
    if x.ndim == 0:
        return x, jnp.zeros((), jnp.int64)
    index = argument(x, axis=dim, keepdims=True).astype(jnp.int64)
    value = jnp.take_along_axis(x, index, axis=dim)
    return (value, index) if keepdim else (jnp.squeeze(value, dim), jnp.squeeze(index, dim))


@checked_op("aten::max.dim")
def max_dim(x, dim, keepdim=False):
    return _with_index(x, dim, keepdim, places.argmax)


@checked_op("aten::min.dim")
def min_dim(x, dim, keepdim=False):
    return _with_index(x, dim, keepdim, places.argmin)


def _arg(x, dim, keepdim, argument):
    if dim is None:
        index = argument(x.reshape(-1))
        return (index.reshape((1,) * x.ndim) if keepdim else index).astype(jnp.int64)
    if x.ndim == 0:
        return jnp.zeros((), jnp.int64)
    return argument(x, axis=dim, keepdims=keepdim).astype(jnp.int64)


@checked_op("aten::argmax")
def argmax(x, dim=None, keepdim=False):
    return _arg(x, dim, keepdim, places.argmax)


@checked_op("aten::argmin")
def argmin(x, dim=None, keepdim=False):
    return _arg(x, dim, keepdim, places.argmin)


@op("aten::any", "aten::any.dim", "aten::any.dims")
def any_(x, dim=None, keepdim=False, *, out):
    return jnp.any(x != 0, axes(dim, x.ndim), keepdims=keepdim).astype(dtypes.to_numpy(out.dtype))


@op("aten::all", "aten::all.dim", "aten::all.dims")
def all_(x, dim=None, keepdim=False, *, out):
    return jnp.all(x != 0, axes(dim, x.ndim), keepdims=keepdim).astype(dtypes.to_numpy(out.dtype))


@op("aten::count_nonzero.dim_IntList", "aten::count_nonzero")
def count_nonzero(x, dim=None):
    return jnp.sum(x != 0, axes(dim, x.ndim), dtype=jnp.int64)


@op("aten::linalg_vector_norm")
def vector_norm(x, ord=2, dim=None, keepdim=False, *, dtype=None, out):
    over = axes(dim, x.ndim)
    size = absolute(opmath(cast(x, dtype) if dtype is not None else x))
    if ord == float("inf"):
        norm = jnp.max(size, over, keepdims=keepdim)
    elif ord == float("-inf"):
        norm = jnp.min(size, over, keepdims=keepdim)
    elif ord == 0:
        norm = jnp.sum(size != 0, over, keepdims=keepdim)
    elif ord == 1:
        norm = jnp.sum(size, over, keepdims=keepdim)
    elif ord == 2:
        norm = root(jnp.sum(size * size, over, keepdims=keepdim))
    else:
        norm = root(jnp.sum(size**ord, over, keepdims=keepdim), ord)
    return norm.astype(dtypes.to_numpy(out.dtype))


@checked_op("aten::hash_tensor")
def hash_tensor(x, dim=(), *, keepdim=False, mode=0, out):
    # the exclusive or of all elements: floats as the bits of their float64, integers sign-extended
    if jnp.issubdtype(x.dtype, jnp.floating):
        x = jax.lax.bitcast_convert_type(x.astype(jnp.float64), jnp.uint64)
    x = x.astype(jnp.int64).astype(jnp.uint64) if x.dtype != jnp.uint64 else x
    reduced = jax.lax.reduce(x, np.uint64(0), jax.lax.bitwise_xor, axes(dim, x.ndim))
    return reduced.reshape(out.shape)
