"""Pooling and resampling."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from .registry import op


def _window(value, n: int) -> tuple[int, ...]:
    value = tuple(value) if isinstance(value, list | tuple) else (value,)
    return value * n if len(value) == 1 else value


def _pads(size, out, kernel, stride, padding, dilation=1) -> tuple[int, int]:
    """Padding on both sides, with what ceil_mode reads past the end."""
    reach = (out - 1) * stride + dilation * (kernel - 1) + 1
    return padding, max(0, reach - size - padding)


def _lowest(dtype):
    return -jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min


def _max_pool(x, kernel, stride, padding, dilation, out, n: int):
    """Maximum and the flat index of it in its plane; nan wins, the first of equals too."""
    kernel, padding, dilation = _window(kernel, n), _window(padding, n), _window(dilation, n)
    stride = _window(stride, n) if stride else kernel
    spatial = x.shape[-n:]
    sizes = out.shape[-n:]
    pads = [_pads(spatial[d], sizes[d], kernel[d], stride[d], padding[d], dilation[d]) for d in range(n)]
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - n) + pads, constant_values=_lowest(x.dtype))
    best = index = None
    # one term per place in the window: XLA fuses them, and the position of the maximum comes for free
    for offset in itertools.product(*(range(k) for k in kernel)):
        start = [offset[d] * dilation[d] for d in range(n)]
        part = padded[
            (..., *(slice(start[d], start[d] + (sizes[d] - 1) * stride[d] + 1, stride[d]) for d in range(n)))
        ]
        place = jnp.zeros((), jnp.int32)
        for d in range(n):
            at = np.arange(sizes[d], dtype=np.int32) * stride[d] + start[d] - padding[d]
            place = place * spatial[d] + jnp.asarray(at).reshape((-1,) + (1,) * (n - 1 - d))
        place = jnp.broadcast_to(place, part.shape)
        if best is None:
            best, index = part, place
        else:
            better = (part > best) | jnp.isnan(part)
            best, index = jnp.where(better, part, best), jnp.where(better, place, index)
    return best, index.astype(jnp.int64)


@op("aten::max_pool2d_with_indices")
def max_pool2d_with_indices(x, kernel_size, stride=(), padding=(0,), dilation=(1,), ceil_mode=False, *, out):
    return _max_pool(x, kernel_size, stride, padding, dilation, out[0], 2)


@op("aten::max_pool3d_with_indices")
def max_pool3d_with_indices(x, kernel_size, stride=(), padding=(0,), dilation=(1,), ceil_mode=False, *, out):
    return _max_pool(x, kernel_size, stride, padding, dilation, out[0], 3)


@op("aten::max_pool2d_with_indices_backward")
def max_pool2d_with_indices_backward(grad, x, kernel_size, stride, padding, dilation, ceil_mode, indices):
    return _max_pool_backward(grad, x, kernel_size, stride, padding, dilation, indices, 2)


@op("aten::max_pool3d_with_indices_backward")
def max_pool3d_with_indices_backward(grad, x, kernel_size, stride, padding, dilation, ceil_mode, indices):
    return _max_pool_backward(grad, x, kernel_size, stride, padding, dilation, indices, 3)


def _max_pool_backward(grad, x, kernel, stride, padding, dilation, indices, n: int):
    """For each place in the window, the gradients whose maximum stood there, put back: no scatter, which is serial on
    the CPU."""
    kernel, padding, dilation = _window(kernel, n), _window(padding, n), _window(dilation, n)
    stride = _window(stride, n) if stride else kernel
    spatial, sizes = x.shape[-n:], grad.shape[-n:]
    total = jnp.zeros(x.shape, grad.dtype)
    for offset in itertools.product(*(range(k) for k in kernel)):
        place = jnp.zeros((), jnp.int32)
        config = [(0, 0, 0)] * (x.ndim - n)
        for d in range(n):
            start = offset[d] * dilation[d] - padding[d]
            at = np.arange(sizes[d], dtype=np.int32) * stride[d] + start
            place = place * spatial[d] + jnp.asarray(at).reshape((-1,) + (1,) * (n - 1 - d))
            length = (sizes[d] - 1) * stride[d] + 1
            config.append((start, spatial[d] - start - length, stride[d] - 1))
        part = jnp.where(indices == place, grad, jnp.zeros((), grad.dtype))
        total = total + jax.lax.pad(part, jnp.zeros((), grad.dtype), config)
    return total


def _avg_pool(x, kernel, stride, padding, count_include_pad, divisor, out_shape, n: int):
    kernel, padding = _window(kernel, n), _window(padding, n)
    stride = _window(stride, n) if stride else kernel
    spatial, sizes = x.shape[-n:], out_shape[-n:]
    lead = x.ndim - n
    pads = [_pads(spatial[d], sizes[d], kernel[d], stride[d], padding[d]) for d in range(n)]
    total = jax.lax.reduce_window(
        x,
        np.zeros((), x.dtype),
        jax.lax.add,
        (1,) * lead + kernel,
        (1,) * lead + stride,
        [(0, 0)] * lead + pads,
    )
    total = total[(..., *(slice(0, s) for s in sizes))]
    if divisor is not None:
        return total / divisor
    counts = np.ones((), np.int64)
    for d in range(n):
        start = np.arange(sizes[d]) * stride[d] - padding[d]
        end = np.minimum(start + kernel[d], spatial[d] + padding[d])
        if not count_include_pad:
            start, end = np.maximum(start, 0), np.minimum(end, spatial[d])
        counts = counts[..., None] * (end - start)
    return total / jnp.asarray(counts, x.dtype)


@op("aten::avg_pool2d")
def avg_pool2d(
    x, kernel_size, stride=(), padding=(0,), ceil_mode=False, count_include_pad=True, divisor_override=None, *, out
):
    return _avg_pool(x, kernel_size, stride, padding, count_include_pad, divisor_override, out.shape, 2)


@op("aten::avg_pool3d")
def avg_pool3d(
    x, kernel_size, stride=(), padding=(0,), ceil_mode=False, count_include_pad=True, divisor_override=None, *, out
):
    return _avg_pool(x, kernel_size, stride, padding, count_include_pad, divisor_override, out.shape, 3)


@op("aten::avg_pool2d_backward")
def avg_pool2d_backward(grad, x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    def forward(x):
        return _avg_pool(x, kernel_size, stride, padding, count_include_pad, divisor_override, grad.shape, 2)

    return jax.vjp(forward, x)[1](grad)[0]


@op("aten::avg_pool3d_backward")
def avg_pool3d_backward(grad, x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    def forward(x):
        return _avg_pool(x, kernel_size, stride, padding, count_include_pad, divisor_override, grad.shape, 3)

    return jax.vjp(forward, x)[1](grad)[0]


def _averaging(size: int, out: int) -> np.ndarray:
    """The matrix (out, size) that averages each of the bins of an adaptive pool."""
    matrix = np.zeros((out, size))
    for i in range(out):
        start, end = i * size // out, math.ceil((i + 1) * size / out)
        matrix[i, start:end] = 1 / (end - start)
    return matrix


def _adaptive_avg_pool(x, sizes, n: int):
    spatial = x.shape[-n:]
    if all(size % out == 0 for size, out in zip(spatial, sizes, strict=True)):
        split = [part for size, out in zip(spatial, sizes, strict=True) for part in (out, size // out)]
        lead = x.ndim - n
        return jnp.mean(x.reshape(*x.shape[:lead], *split), tuple(lead + 1 + 2 * d for d in range(n)))
    for d in range(n):
        matrix = jnp.asarray(_averaging(spatial[d], sizes[d]), x.dtype)
        x = jnp.moveaxis(jnp.tensordot(x, matrix, ((x.ndim - n + d,), (1,)), precision="highest"), -1, x.ndim - n + d)
    return x


@op("aten::_adaptive_avg_pool2d", "aten::adaptive_avg_pool2d")
def adaptive_avg_pool2d(x, output_size, *, out):
    return _adaptive_avg_pool(x, out.shape[-2:], 2)


@op("aten::_adaptive_avg_pool3d", "aten::adaptive_avg_pool3d")
def adaptive_avg_pool3d(x, output_size, *, out):
    return _adaptive_avg_pool(x, out.shape[-3:], 3)


@op("aten::_adaptive_avg_pool2d_backward")
def adaptive_avg_pool2d_backward(grad, x):
    return jax.vjp(lambda x: _adaptive_avg_pool(x, grad.shape[-2:], 2), x)[1](grad)[0]


@op("aten::_adaptive_avg_pool3d_backward")
def adaptive_avg_pool3d_backward(grad, x):
    return jax.vjp(lambda x: _adaptive_avg_pool(x, grad.shape[-3:], 3), x)[1](grad)[0]


@op("aten::upsample_nearest2d", "aten::upsample_nearest1d", "aten::upsample_nearest3d")
def upsample_nearest(x, output_size, *scales, out):
    for d, (size, target) in enumerate(zip(x.shape[2:], out.shape[2:], strict=True)):
        scale = scales[d] if d < len(scales) and scales[d] is not None else None
        ratio = 1 / scale if scale else size / target
        at = np.minimum(np.floor(np.arange(target, dtype=np.float32) * np.float32(ratio)).astype(np.int64), size - 1)
        x = jnp.take(x, jnp.asarray(at), axis=d + 2)
    return x
