"""Normalisation: batch, layer, group."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import torch

from ...ir import dtypes
from ...lowering import aten_bridge
from ...lowering.layout import ChannelsLast, physical
from ..indexing.reduction import opmath
from ..registry import op
from . import batch_statistics

# ---- batch norm, on images with their channels last


def _affine(x, mean, invstd, weight, bias):
    scale = invstd if weight is None else invstd * opmath(weight)
    shift = -mean * scale if bias is None else opmath(bias) - mean * scale
    return ChannelsLast((opmath(x) * scale + shift).astype(x.dtype))


# Torch's meta kernels differ from its CPU kernels: they give mean and deviation of the batch in evaluation too, and
# statistics in float32 whatever the parameters are.


def _statistics_dtype(x, *parameters):
    """The dtype in which the CPU kernels give statistics.

    Raises:
        RuntimeError: theirs, for parameters of another dtype.
    """
    found = {parameter.dtype for parameter in parameters if parameter is not None}
    if found <= {x.dtype} or not x.dtype.is_floating_point:  # of which kernels say that they are not implemented
        return x.dtype
    if x.dtype in (torch.bfloat16, torch.float16) and found == {torch.float32}:
        return torch.float32
    raise RuntimeError("mixed dtype (CPU): all inputs must share same datatype.")


def _infer_no_training(x, weight, bias, running_mean, running_var, momentum, eps):
    dtype = _statistics_dtype(x, weight, bias, running_mean, running_var)
    target = torch.ops.aten._native_batch_norm_legit_no_training.default
    y, mean, _ = target(x, weight, bias, running_mean, running_var, momentum, eps)
    return y, mean.new_empty(0, dtype=dtype), mean.new_empty(0, dtype=dtype)


def _infer_functional(x, weight, bias, running_mean, running_var, training, *rest):
    dtype = _statistics_dtype(x, weight, bias, running_mean, running_var)
    target = torch.ops.aten._native_batch_norm_legit_functional.default
    y, mean, *_ = target(x, weight, bias, running_mean, running_var, training, *rest)
    mean, invstd = (mean.new_empty(mean.shape if training else 0, dtype=dtype) for _ in range(2))
    return y, mean, invstd, torch.empty_like(running_mean), torch.empty_like(running_var)


def _infer_no_stats(x, weight, bias, training, momentum, eps):
    dtype = _statistics_dtype(x, weight, bias)
    target = torch.ops.aten._native_batch_norm_legit.no_stats
    y, *saved = target(x, weight, bias, training, momentum, eps)
    return y, *(each.to(dtype) for each in saved)


def _infer_native(x, weight, bias, running_mean, running_var, training, momentum, eps):
    dtype = _statistics_dtype(x, weight, bias, running_mean, running_var)
    target = torch.ops.aten.native_batch_norm.default
    y, *saved = target(x, weight, bias, running_mean, running_var, training, momentum, eps)
    return y, *(each.new_empty(each.shape if training else 0, dtype=dtype) for each in saved)


@op("aten::_native_batch_norm_legit_no_training", channels_last=True, infer=_infer_no_training)
def batch_norm_no_training(x, weight, bias, running_mean, running_var, momentum, eps, *, out):
    invstd = jax.lax.rsqrt(opmath(running_var) + eps)
    empty = jnp.zeros(out[1].shape, dtypes.to_numpy(out[1].dtype))
    return _affine(physical(x), opmath(running_mean), invstd, weight, bias), empty, empty


@op("aten::_native_batch_norm_legit_functional", channels_last=True, infer=_infer_functional)
def batch_norm_functional(x, weight, bias, running_mean, running_var, training, momentum, eps, *, out):
    if not training:
        y, *saved = batch_norm_no_training(x, weight, bias, running_mean, running_var, momentum, eps, out=out)
        return y, *saved, running_mean, running_var
    x = physical(x)
    mean, var = batch_statistics.moments(x, out[0].device.platform)
    invstd = jax.lax.rsqrt(var + eps)
    count = x.size // x.shape[-1]
    unbiased = var * (count / max(count - 1, 1))
    new_mean = (momentum * mean + (1 - momentum) * running_mean).astype(running_mean.dtype)
    new_var = (momentum * unbiased + (1 - momentum) * running_var).astype(running_var.dtype)
    return _affine(x, mean, invstd, weight, bias), *_saved(mean, invstd, out), new_mean, new_var


def _infer_with_update(x, weight, bias, running_mean, running_var, *rest):
    y, mean, invstd, *running = _infer_functional(x, weight, bias, running_mean, running_var, True, *rest)
    return y, mean, invstd, x.new_empty(0, dtype=torch.uint8), *running  # what only cuDNN reserves


@op("aten::_batch_norm_with_update_functional", channels_last=True, infer=_infer_with_update)
def batch_norm_with_update(x, weight, bias, running_mean, running_var, momentum, eps, *, out):
    statistics = (running_mean, running_var, True, momentum, eps)
    y, mean, invstd, *running = batch_norm_functional(x, weight, bias, *statistics, out=out)
    return y, mean, invstd, jnp.zeros(0, jnp.uint8), *running


def _saved(mean, invstd, out):
    """What the gradient wants. It is constant to torch, and so to jax."""
    return _statistics(*jax.lax.stop_gradient((mean, invstd)), out)


def _statistics(mean, invstd, out):
    """Both in the dtypes of the results."""
    return mean.astype(dtypes.to_numpy(out[1].dtype)), invstd.astype(dtypes.to_numpy(out[2].dtype))


@op("aten::_native_batch_norm_legit.no_stats", channels_last=True, infer=_infer_no_stats)
def batch_norm_no_stats(x, weight, bias, training, momentum, eps, *, out):
    x = physical(x)
    mean, var = batch_statistics.moments(x, out[0].device.platform)
    invstd = jax.lax.rsqrt(var + eps)
    return _affine(x, mean, invstd, weight, bias), *_saved(mean, invstd, out)


@op("aten::native_batch_norm", channels_last=True, infer=_infer_native)
def native_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps, *, out):
    if training:
        return batch_norm_no_stats(x, weight, bias, training, momentum, eps, out=out)
    return batch_norm_no_training(x, weight, bias, running_mean, running_var, momentum, eps, out=out)


def _infer_native_backward(*args):
    gradients = torch.ops.aten.native_batch_norm_backward.default(*args)
    # the meta kernel makes the input's gradient whether it is wanted or not
    return tuple(found if wanted else None for found, wanted in zip(gradients, args[-1], strict=True))


@op("aten::native_batch_norm_backward", channels_last=True, infer=_infer_native_backward)
def native_batch_norm_backward(
    grad, x, weight, running_mean, running_var, saved_mean, saved_invstd, train, eps, output_mask, *, input_spec
):
    dtype, platform, image = x.dtype, input_spec.device.platform, physical(x)
    grad, x = opmath(physical(grad)), opmath(image)
    if train and saved_mean.dtype != x.dtype:  # rounded to 16 bits
        mean, var = batch_statistics.moments(image, platform)
        invstd = jax.lax.rsqrt(var + eps)
    elif train:
        mean, invstd = saved_mean, saved_invstd
    else:
        mean, invstd = opmath(running_mean), jax.lax.rsqrt(opmath(running_var) + eps)
    scale = invstd if weight is None else invstd * opmath(weight)
    normalized = (x - mean) * invstd
    grad_weight, grad_bias = batch_statistics.gradients(image, grad, x, mean, invstd, normalized, platform)
    inner = grad
    if train:
        count = x.size // x.shape[-1]
        inner = grad - grad_bias / count - normalized * (grad_weight / count)
    kind = dtype if weight is None else weight.dtype
    return (
        ChannelsLast((inner * scale).astype(dtype)) if output_mask[0] else None,
        grad_weight.astype(kind) if output_mask[1] else None,
        grad_bias.astype(kind) if output_mask[2] else None,
    )


# ---- layer norm


def _infer_layer_norm(x, normalized_shape, weight, bias, eps):
    y, mean, rstd = torch.ops.aten.native_layer_norm.default(x, normalized_shape, weight, bias, eps)
    dtype = _statistics_dtype(x, weight, bias)
    return y, mean.to(dtype), rstd.to(dtype)


#: Elements from which torch's kernels normalize layers on the CPU: forward they are level with XLA's five loops there,
#: backward they take two thirds of the time; below, a kernel's threads take longer to wake than it to work.
LEAST_FOR_ATEN = 1 << 18


def _calls_aten(x, spec) -> bool:
    return spec.device.platform == "cpu" and aten_bridge.available() and x.size >= LEAST_FOR_ATEN


@op("aten::native_layer_norm", infer=_infer_layer_norm)
def native_layer_norm(x, normalized_shape, weight, bias, eps, *, out):
    if _calls_aten(x, out[0]):
        arguments = [x, normalized_shape, weight, bias, eps]
        return tuple(aten_bridge.call("aten::native_layer_norm", arguments, [spec.struct() for spec in out]))
    over = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    z = opmath(x)
    mean = jnp.mean(z, over, keepdims=True)
    rstd = jax.lax.rsqrt(jnp.mean(jnp.square(z - mean), over, keepdims=True) + eps)
    y = (z - mean) * rstd
    if weight is not None:
        y = y * opmath(weight)
    if bias is not None:
        y = y + opmath(bias)
    return y.astype(x.dtype), *_saved(mean, rstd, out)


@op("aten::native_layer_norm_backward")
def native_layer_norm_backward(grad, x, normalized_shape, mean, rstd, weight, bias, output_mask, *, out):
    if _calls_aten(x, next(spec for spec in out if spec is not None)):
        arguments = [grad, x, normalized_shape, mean, rstd, weight, bias, output_mask]
        like = [spec and spec.struct() for spec in out]
        return tuple(aten_bridge.call("aten::native_layer_norm_backward", arguments, like))
    n = len(normalized_shape)
    over, batch = tuple(range(x.ndim - n, x.ndim)), tuple(range(x.ndim - n))
    g, z = opmath(grad), opmath(x)
    if mean.dtype != z.dtype:  # rounded to 16 bits
        mean = jnp.mean(z, over, keepdims=True)
    normalized = (z - mean) * opmath(rstd)
    h = g if weight is None else g * opmath(weight)
    grad_x = None
    if output_mask[0]:
        inner = h - jnp.mean(h, over, keepdims=True) - normalized * jnp.mean(h * normalized, over, keepdims=True)
        grad_x = (inner * opmath(rstd)).astype(x.dtype)
    grad_weight = jnp.sum(g * normalized, batch).astype(weight.dtype) if output_mask[1] and weight is not None else None
    grad_bias = jnp.sum(g, batch).astype(x.dtype) if output_mask[2] and bias is not None else None
    return grad_x, grad_weight, grad_bias


# ---- group norm


def _channelwise(v, x):
    """A vector over the channels, shaped to meet `x`."""
    return v.reshape((1, -1) + (1,) * (x.ndim - 2))


def _others(x) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _grouped(x, groups: int):
    return opmath(x).reshape(x.shape[0], groups, math.prod(x.shape[1:]) // groups)


def _infer_group_norm(x, weight, bias, N, C, HxW, group, eps):
    y, mean, rstd = torch.ops.aten.native_group_norm.default(x, weight, bias, N, C, HxW, group, eps)
    dtype = _statistics_dtype(x, weight, bias)
    return y, mean.to(dtype), rstd.to(dtype)


@op("aten::native_group_norm", infer=_infer_group_norm)
def native_group_norm(x, weight, bias, N, C, HxW, group, eps, *, out):
    z = _grouped(x, group)
    mean = jnp.mean(z, -1, keepdims=True)
    rstd = jax.lax.rsqrt(jnp.mean(jnp.square(z - mean), -1, keepdims=True) + eps)
    y = ((z - mean) * rstd).reshape(x.shape)
    if weight is not None:
        y = y * _channelwise(opmath(weight), x)
    if bias is not None:
        y = y + _channelwise(opmath(bias), x)
    return y.astype(x.dtype), *_statistics(mean[..., 0], rstd[..., 0], out)  # with gradients, unlike other norms'


@op("aten::native_group_norm_backward")
def native_group_norm_backward(grad, x, mean, rstd, weight, N, C, HxW, group, output_mask, *, out):
    g = opmath(grad)
    mean, rstd = opmath(mean)[..., None], opmath(rstd)[..., None]
    normalized = (_grouped(x, group) - mean) * rstd
    h = _grouped(g if weight is None else g * _channelwise(opmath(weight), x), group)
    grad_x = grad_weight = grad_bias = None
    if output_mask[0]:
        inner = h - jnp.mean(h, -1, keepdims=True) - normalized * jnp.mean(h * normalized, -1, keepdims=True)
        grad_x = (inner * rstd).reshape(x.shape).astype(x.dtype)
    if output_mask[1]:
        grad_weight = jnp.sum(g * normalized.reshape(x.shape), _others(x)).astype(dtypes.to_numpy(out[1].dtype))
    if output_mask[2]:
        grad_bias = jnp.sum(g, _others(x)).astype(dtypes.to_numpy(out[2].dtype))
    return grad_x, grad_weight, grad_bias
