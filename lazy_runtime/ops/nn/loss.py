"""Softmax and losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch

from ...ir import dtypes
from ...lowering import checks
from ..gradients import with_slopes
from ..indexing.reduction import checked_op, opmath
from ..indexing.selection import cast
from ..registry import op

aten = torch.ops.aten

NONE, MEAN, SUM = 0, 1, 2  # at::Reduction


@op("aten::_safe_softmax")
def safe_softmax(x, dim, dtype=None, *, out):
    if not x.ndim:
        return softmax(cast(x, out.dtype), dim, out=out)
    # a row of -inf has no weights at all: zeros, not nan, in jax's gradient neither
    is_empty = jnp.all(x == -jnp.inf, dim, keepdims=True)
    return jnp.where(is_empty, 0, softmax(jnp.where(is_empty, 0, cast(x, out.dtype)), dim, out=out))


@checked_op("aten::_softmax")
def softmax(x, dim, half_to_float=False, *, out):
    return jax.nn.softmax(opmath(x), axis=dim if x.ndim else None).astype(dtypes.to_numpy(out.dtype))


@checked_op("aten::_log_softmax")
def log_softmax(x, dim, half_to_float=False, *, out):
    return jax.nn.log_softmax(opmath(x), axis=dim if x.ndim else None).astype(dtypes.to_numpy(out.dtype))


@op("aten::_softmax_backward_data")
def softmax_backward(grad, y, dim, input_dtype, *, out):
    g, z = opmath(grad), opmath(y)
    axis = dim if y.ndim else None
    return (z * (g - jnp.sum(g * z, axis, keepdims=True))).astype(dtypes.to_numpy(out.dtype))


@op("aten::_log_softmax_backward_data")
def log_softmax_backward(grad, y, dim, input_dtype, *, out):
    g, z = opmath(grad), opmath(y)
    axis = dim if y.ndim else None
    return (g - jnp.exp(z) * jnp.sum(g, axis, keepdims=True)).astype(dtypes.to_numpy(out.dtype))


def reduce(x, reduction):
    """The sum or mean of a loss over its elements, or the loss."""
    return x if reduction == NONE else jnp.mean(x) if reduction == MEAN else jnp.sum(x)


def _target_weights(x, target, weight, ignore_index):
    """Target as one-hot weights along the class axis (1, or 0 for a single sample), and each target's own weight."""
    axis = 1 if x.ndim > 1 else 0
    valid = target != ignore_index
    safe = jnp.where(valid, target.astype(jnp.int64), 0)
    checks.in_range(safe, x.shape[axis], lambda label: IndexError(f"Target {label} is out of bounds."), lowest=0)
    each = jnp.ones(target.shape, x.dtype) if weight is None else weight[safe]
    return axis, safe, jnp.where(valid, each, 0)


def _any_labels(operator: Any) -> Callable[..., Any]:
    """For `infer=`: the operator, whose meta kernel takes no labels of bytes as the CPU kernel does."""

    def wide(x: Any) -> Any:
        return x.long() if isinstance(x, torch.Tensor) and x.is_meta and x.dtype is torch.uint8 else x

    def infer(*args: Any) -> Any:
        return operator(*map(wide, args))

    return infer


@op("aten::nll_loss_forward", fallible=True, infer=_any_labels(aten.nll_loss_forward.default))
@op("aten::nll_loss2d_forward", fallible=True)
def nll_loss_forward(x, target, weight, reduction, ignore_index):
    axis, safe, each = _target_weights(x, target, weight, ignore_index)
    picked = jnp.squeeze(jnp.take_along_axis(x, jnp.expand_dims(safe, axis), axis), axis)
    loss = -picked * each
    total = jnp.sum(each)
    if reduction == NONE:
        return loss, jnp.zeros((), x.dtype)
    return (jnp.sum(loss) / total if reduction == MEAN else jnp.sum(loss)), total


@op("aten::nll_loss_backward", fallible=True, infer=_any_labels(aten.nll_loss_backward.default))
@op("aten::nll_loss2d_backward", fallible=True)
def nll_loss_backward(grad, x, target, weight, reduction, ignore_index, total_weight):
    axis, safe, each = _target_weights(x, target, weight, ignore_index)
    if reduction == MEAN:
        grad = grad / total_weight
    classes = jnp.arange(x.shape[axis]).reshape((-1,) + (1,) * (target.ndim - axis))
    here = jnp.expand_dims(safe, axis) == classes
    return jnp.where(here, jnp.expand_dims(-grad * each, axis), 0).astype(x.dtype)


@op("aten::mse_loss")
def mse_loss(x, target, reduction=MEAN):
    return reduce(jnp.square(x - target), reduction)


@op("aten::mse_loss_backward")
def mse_loss_backward(grad, x, target, reduction, *, out):
    scale = 2 / out.numel if reduction == MEAN else 2
    return jnp.broadcast_to(grad * scale * (x - target), out.shape).astype(x.dtype)


@op("aten::smooth_l1_loss")
def smooth_l1_loss(x, target, reduction=MEAN, beta=1.0):
    size = jnp.abs(x - target)
    return reduce(jnp.where(size < beta, 0.5 * size * size / beta, size - 0.5 * beta) if beta else size, reduction)


@op("aten::smooth_l1_loss_backward")
def smooth_l1_loss_backward(grad, x, target, reduction, beta, *, out):
    difference = x - target
    slope = jnp.where(jnp.abs(difference) < beta, difference / (beta or 1), jnp.sign(difference))
    return jnp.broadcast_to(grad * slope / (out.numel if reduction == MEAN else 1), out.shape).astype(x.dtype)


@op("aten::binary_cross_entropy", fallible=True)
def binary_cross_entropy(x, target, weight=None, reduction=MEAN):
    for name, value in (("input", x), ("target", target)):
        inside = jnp.all((value >= 0) & (value <= 1))
        message = f"all elements of {name} should be between 0 and 1"
        checks.require(inside, lambda _, message=message: RuntimeError(message))

    def of_each(x, target):  # torch clamps the logarithms at -100
        return -(target * jnp.maximum(jnp.log(x), -100) + (1 - target) * jnp.maximum(jnp.log1p(-x), -100))

    loss = with_slopes(of_each, _slope, lambda x, target: jnp.log1p(-x) - jnp.log(x))(x, target)
    return reduce(loss if weight is None else loss * weight, reduction)


def _slope(x, target):
    return (x - target) / jnp.maximum((1 - x) * x, 1e-12)


@op("aten::binary_cross_entropy_backward")
def binary_cross_entropy_backward(grad, x, target, weight=None, reduction=MEAN):
    slope = grad * _slope(x, target)
    slope = slope if weight is None else slope * weight
    return (slope / x.size if reduction == MEAN else slope).astype(x.dtype)


@op("aten::binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(x, target, weight=None, pos_weight=None, reduction=MEAN, *, out):
    log_weight = 1 if pos_weight is None else (pos_weight - 1) * target + 1
    loss = (1 - target) * x + log_weight * jax.nn.softplus(-x)
    return reduce(loss if weight is None else loss * weight, reduction).astype(dtypes.to_numpy(out.dtype))
