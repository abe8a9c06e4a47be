"""Activation functions and their gradients (https://pytorch.org/docs/stable/nn.functional.html#non-linear-activation-functions)."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from ...ir import dtypes
from ...lowering.layout import elementwise
from ..gradients import with_slopes
from ..indexing.reduction import opmath
from ..registry import checked_dtypes, op, pointwise
from .comparison import clamp

_SQRT_HALF = math.sqrt(0.5)
_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)


@pointwise("aten::relu")
def relu(x):
    return with_slopes(lambda x: jnp.where(x < 0, 0, x), lambda x: x > 0)(x)  # a negative zero stays one, as in torch


# Numbers are of the elements' dtype, which promotion with a float would make one that does not hold all integers.


@op("aten::threshold", infer=checked_dtypes("aten::threshold"), channels_last=True)
def threshold(x, threshold, value):
    return elementwise(lambda x: _above(x, x, threshold, value), x)


@op("aten::threshold_backward", infer=checked_dtypes("aten::threshold_backward"), channels_last=True)
def threshold_backward(grad, x, threshold, *, out):
    dtype = dtypes.to_numpy(out.dtype)
    return elementwise(lambda grad, x: _above(x.astype(dtype), grad.astype(dtype), threshold, 0), grad, x)


def _above(x, chosen, threshold, value):
    """What is chosen where `x` is above a threshold, else a value."""
    wide = opmath(x)
    threshold, value = jnp.asarray(threshold).astype(wide.dtype), jnp.asarray(value).astype(x.dtype)
    return jnp.where(wide <= threshold, value, chosen)


@pointwise("aten::hardtanh", "aten::relu6")
def hardtanh(x, min_val=-1, max_val=1):
    return with_slopes(lambda x: clamp(x, min_val, max_val), lambda x: hardtanh_backward(1, x, min_val, max_val))(x)


@pointwise("aten::hardtanh_backward")
def hardtanh_backward(grad, x, min_val, max_val):
    return jnp.where((x <= min_val) | (x >= max_val), 0, grad)


@pointwise("aten::gelu")
def gelu(x, *, approximate="none"):
    if approximate == "tanh":
        return 0.5 * x * (1 + jnp.tanh(_SQRT_2_OVER_PI * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + jax.lax.erf(x * _SQRT_HALF))


@pointwise("aten::gelu_backward")
def gelu_backward(grad, x, *, approximate="none"):
    if approximate == "tanh":
        inner = _SQRT_2_OVER_PI * (x + 0.044715 * x**3)
        tanh = jnp.tanh(inner)
        slope = _SQRT_2_OVER_PI * (1 + 3 * 0.044715 * x * x)
        return grad * (0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * slope)
    density = jnp.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return grad * (0.5 * (1 + jax.lax.erf(x * _SQRT_HALF)) + x * density)


@pointwise("aten::silu")
def silu(x):
    return x * jax.nn.sigmoid(x)


@pointwise("aten::silu_backward")
def silu_backward(grad, x):
    sigmoid = jax.nn.sigmoid(x)
    return grad * sigmoid * (1 + x * (1 - sigmoid))


@pointwise("aten::mish")
def mish(x):
    return x * jnp.tanh(jax.nn.softplus(x))


@pointwise("aten::mish_backward")
def mish_backward(grad, x):
    tanh, sigmoid = jnp.tanh(jax.nn.softplus(x)), jax.nn.sigmoid(x)
    return grad * (tanh + x * sigmoid * (1 - tanh * tanh))


@pointwise("aten::hardswish")
def hardswish(x):
    return with_slopes(lambda x: x * jnp.clip(x + 3, 0, 6) / 6, lambda x: hardswish_backward(1, x))(x)


@pointwise("aten::hardswish_backward")
def hardswish_backward(grad, x):
    return jnp.where(x <= -3, 0, jnp.where(x < 3, grad * (x / 3 + 0.5), grad))


@pointwise("aten::hardsigmoid")
def hardsigmoid(x):
    return with_slopes(lambda x: jnp.clip(x + 3, 0, 6) / 6, lambda x: hardsigmoid_backward(1, x))(x)


@pointwise("aten::hardsigmoid_backward")
def hardsigmoid_backward(grad, x):
    return jnp.where((x > -3) & (x < 3), grad / 6, 0)


@pointwise("aten::leaky_relu")
def leaky_relu(x, negative_slope=0.01):
    return jnp.where(x > 0, x, x * negative_slope)


@pointwise("aten::leaky_relu_backward")
def leaky_relu_backward(grad, x, negative_slope, self_is_result):
    return jnp.where(x > 0, grad, grad * negative_slope)


@pointwise("aten::elu")
def elu(x, alpha=1, scale=1, input_scale=1):
    return with_slopes(
        lambda x: jnp.where(x > 0, scale * x, alpha * scale * jnp.expm1(jnp.minimum(x, 0) * input_scale)),
        lambda x: elu_backward(1, alpha, scale, input_scale, False, x),
    )(x)


@pointwise("aten::elu_backward")
def elu_backward(grad, alpha, scale, input_scale, is_result, x):
    negative = x + alpha * scale if is_result else alpha * scale * jnp.exp(jnp.minimum(x, 0) * input_scale)
    return grad * jnp.where(x <= 0, input_scale * negative, scale)


@pointwise("aten::softplus")
def softplus(x, beta=1, threshold=20):
    is_large = x * beta > threshold
    return jnp.where(is_large, x, jnp.log1p(jnp.exp(jnp.where(is_large, 0, x * beta))) / beta)


@pointwise("aten::softplus_backward")
def softplus_backward(grad, x, beta, threshold):
    return jnp.where(x * beta > threshold, grad, grad * jax.nn.sigmoid(x * beta))


@pointwise("aten::log_sigmoid_backward")
def log_sigmoid_backward(grad, x, buffer):
    return grad * jax.nn.sigmoid(-x)


@op("aten::log_sigmoid_forward")
def log_sigmoid_forward(x, *, out):
    # the second output is scratch space for torch's CPU kernel
    return -jax.nn.softplus(-x), jnp.zeros(out[1].shape, x.dtype)


@pointwise("aten::sigmoid_backward")
def sigmoid_backward(grad, y):
    return grad * (1 - jnp.conj(y)) * jnp.conj(y)


@pointwise("aten::tanh_backward")
def tanh_backward(grad, y):
    return grad * (1 - jnp.conj(y) ** 2)


@pointwise("aten::softshrink")
def softshrink(x, lambd=0.5):
    return jnp.where(x > lambd, x - lambd, jnp.where(x < -lambd, x + lambd, x * 0))


@pointwise("aten::hardshrink")
def hardshrink(x, lambd=0.5):
    return jnp.where((x >= -lambd) & (x <= lambd), 0, x)


@pointwise("aten::softshrink_backward", "aten::hardshrink_backward")
def shrink_backward(grad, x, lambd):
    return jnp.where((x >= -lambd) & (x <= lambd), 0, grad)


@pointwise("aten::_prelu_kernel")
def prelu(x, weight):
    return jnp.where(x > 0, x, weight * x)


@op("aten::_prelu_kernel_backward")
def prelu_backward(grad, x, weight):
    return jnp.where(x > 0, grad, weight * grad), jnp.where(x > 0, 0, x * grad)


@op("aten::glu")
def glu(x, dim=-1):
    first, second = jnp.split(x, 2, axis=dim)
    return first * jax.nn.sigmoid(second)


@op("aten::glu_backward")
def glu_backward(grad, x, dim):
    first, second = jnp.split(x, 2, axis=dim)
    sigmoid = jax.nn.sigmoid(second)
    return jnp.concatenate([grad * sigmoid, grad * first * sigmoid * (1 - sigmoid)], axis=dim)
