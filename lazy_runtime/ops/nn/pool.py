"""Pooling."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from ...ir import lowering_context
from ...lowering import aten_bridge
from ...lowering.layout import ChannelsLast, logical, physical
from ..indexing.reduction import opmath
from ..registry import op


def _window(value, n: int) -> tuple[int, ...]:
    value = tuple(value) if isinstance(value, list | tuple) else (value,)
    return value * n if len(value) == 1 else value


def _pads(size, out, kernel, stride, padding, dilation=1) -> tuple[int, int]:
    """Padding on both sides, with what ceil_mode reads past the end."""
    reach = (out - 1) * stride + dilation * (kernel - 1) + 1
    return padding, max(0, reach - size - padding)


def _lowest(dtype):
    return -jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min


def _places(start, stride, spatial, sizes):
    """Flat index in the plane of what each window has at `offset`: an array that broadcasts over batch and channels."""
    n = len(sizes)
    place = np.zeros((), np.int32)
    for d in range(n):
        at = np.arange(sizes[d], dtype=np.int32) * stride[d] + start[d]
        place = place * spatial[d] + at.reshape((-1,) + (1,) * (n - 1 - d))
    return jnp.asarray(place)[..., None]


class _Windows:
    """The windows of a pool over (batch, space..., channels)."""

    def __init__(self, n: int, spatial, sizes, kernel, stride, padding, dilation=(1,)):
        self.spatial, self.sizes = tuple(spatial), tuple(sizes)
        self.kernel, self.padding, self.dilation = (_window(value, n) for value in (kernel, padding, dilation))
        self.stride = _window(stride, n) if stride else self.kernel
        self.n = n

    def offsets(self):
        """(first position read, flat index of each window's element) for each place in the window."""
        for offset in itertools.product(*(range(k) for k in self.kernel)):
            start = tuple(offset[d] * self.dilation[d] - self.padding[d] for d in range(self.n))
            yield start, _places(start, self.stride, self.spatial, self.sizes)

    def pads(self):
        return [
            _pads(self.spatial[d], self.sizes[d], self.kernel[d], self.stride[d], self.padding[d], self.dilation[d])
            for d in range(self.n)
        ]

    def part(self, padded, start):
        """The elements that the windows have at one place, of an array padded by `pads`."""
        index = [slice(None)]
        for d in range(self.n):
            first = start[d] + self.padding[d]
            index.append(slice(first, first + (self.sizes[d] - 1) * self.stride[d] + 1, self.stride[d]))
        return padded[tuple(index)]


def _batched(function):
    """Gives a pool over (batch, space..., channels) torch's arguments: with or without a batch, in torch's order."""

    def call(x, *rest, n, **options):
        if x.ndim == n + 2:
            return jax.tree.map(ChannelsLast, function(physical(x), *map(_to_physical, rest), n=n, **options))
        rest = [physical(logical(y)[None]) if isinstance(y, ChannelsLast | jax.Array) and y.ndim else y for y in rest]
        result = function(physical(logical(x)[None]), *rest, n=n, **options)
        return jax.tree.map(lambda y: logical(ChannelsLast(y))[0], result)

    return call


def _to_physical(x):
    return physical(x) if isinstance(x, ChannelsLast | jax.Array) else x


@_batched
def _max_pool(x, kernel, stride, padding, dilation, sizes, *, n: int):
    """Maximum and the flat index of it in its plane."""
    windows = _Windows(n, x.shape[1:-1], sizes, kernel, stride, padding, dilation)
    padded = jnp.pad(x, [(0, 0), *windows.pads(), (0, 0)], constant_values=_lowest(x.dtype))
    return _maximum((windows.part(padded, start), place) for start, place in windows.offsets())


def _maximum(terms):
    """The greatest of the arrays and the number that stands beside it; nan wins, and the first of equals. One term per
    place in a window: XLA fuses them, and the position of the maximum comes for free. Where nobody asks for that, one
    instruction for each element is left: choosing the value by `better` too took twice the time.
    """
    best = index = None
    for part, place in terms:
        place = jnp.broadcast_to(place, part.shape)
        if best is None or index is None:
            best, index = part, place
        else:
            better = (part > best) | jnp.isnan(part)
            best, index = jnp.maximum(best, part), jnp.where(better, place, index)
    assert index is not None
    return best, index.astype(jnp.int64)


@_batched
def _max_pool_backward(x, grad, indices, kernel, stride, padding, dilation, *, n: int):
    """For each place in the window, the gradients whose maximum stood there, put back: no scatter, which is serial on
    the CPU.
    """
    spatial, sizes = x.shape[1:-1], grad.shape[1:-1]
    windows = _Windows(n, spatial, sizes, kernel, stride, padding, dilation)
    zero = jnp.zeros((), grad.dtype)
    total = jnp.zeros(x.shape, grad.dtype)
    for start, place in windows.offsets():
        edges = []
        for d in range(n):
            length = (sizes[d] - 1) * windows.stride[d] + 1
            edges.append((start[d], spatial[d] - start[d] - length, windows.stride[d] - 1))
        part = jnp.where(indices == place, grad, zero)
        total = total + _spread(part, zero, [(0, 0, 0), *edges, (0, 0, 0)])
    return total


def _spread(x, zero, edges):
    """`lax.pad`. What negative edges take away is cut off afterwards: in a sharded dimension XLA's partitioner (jaxlib
    0.10.2) ends the process over them.
    """
    wide = jax.lax.pad(x, zero, [(max(low, 0), max(high, 0), between) for low, high, between in edges])
    return wide[tuple(slice(max(-low, 0), wide.shape[d] + min(high, 0)) for d, (low, high, _) in enumerate(edges))]


@op("aten::max_pool2d_with_indices", channels_last=True)
def max_pool2d_with_indices(x, kernel_size, stride=(), padding=(0,), dilation=(1,), ceil_mode=False, *, out):
    # XLA pads in memory, which takes longer than all else; torch's kernel does not, and is at home among others of its
    is_among_kernels = lowering_context.current().has_kernel_thread
    if is_among_kernels and x.ndim == 4 and any(_window(padding, 2)) and x.dtype == jnp.float32:
        like = [ChannelsLast.described(out[0].shape, dtype) for dtype in (x.dtype, jnp.int64)]
        arguments = [kernel_size, stride, padding, dilation, ceil_mode]
        return tuple(aten_bridge.call("aten::max_pool2d_with_indices", [ChannelsLast(physical(x)), *arguments], like))
    return _max_pool(x, kernel_size, stride, padding, dilation, out[0].shape[-2:], n=2)


@op("aten::max_pool3d_with_indices", channels_last=True)
def max_pool3d_with_indices(x, kernel_size, stride=(), padding=(0,), dilation=(1,), ceil_mode=False, *, out):
    return _max_pool(x, kernel_size, stride, padding, dilation, out[0].shape[-3:], n=3)


@op("aten::max_pool2d_with_indices_backward", channels_last=True)
def max_pool2d_with_indices_backward(
    grad, x, kernel_size, stride, padding, dilation, ceil_mode, indices, *, input_spec
):
    floats = x.dtype in (jnp.float32, jnp.float64, jnp.bfloat16, jnp.float16)
    if input_spec.device.platform == "cpu" and floats and x.ndim == 4 and x.size and aten_bridge.available():
        images = [ChannelsLast(physical(image)) for image in (grad, x)]
        window = [kernel_size, stride, padding, dilation, ceil_mode]
        (grad_x,) = aten_bridge.call(
            "aten::max_pool2d_with_indices_backward",
            [*images, *window, ChannelsLast(physical(indices))],
            [images[1]],
        )
        return grad_x
    return _max_pool_backward(x, grad, indices, kernel_size, stride, padding, dilation, n=2)


@op("aten::max_pool3d_with_indices_backward", channels_last=True)
def max_pool3d_with_indices_backward(grad, x, kernel_size, stride, padding, dilation, ceil_mode, indices):
    return _max_pool_backward(x, grad, indices, kernel_size, stride, padding, dilation, n=3)


@_batched
def _avg_pool(x, kernel, stride, padding, count_include_pad, divisor, sizes, *, n: int):
    windows = _Windows(n, x.shape[1:-1], sizes, kernel, stride, padding)
    dtype = x.dtype
    x = opmath(x)
    total = jax.lax.reduce_window(
        x,
        np.zeros((), x.dtype),
        jax.lax.add,
        (1, *windows.kernel, 1),
        (1, *windows.stride, 1),
        [(0, 0), *windows.pads(), (0, 0)],
    )
    total = total[(slice(None), *(slice(0, size) for size in sizes))]
    if divisor is not None:
        return _divided(total, divisor).astype(dtype)
    counts = np.ones((), np.int64)
    for d in range(n):
        start = np.arange(sizes[d]) * windows.stride[d] - windows.padding[d]
        end = np.minimum(start + windows.kernel[d], windows.spatial[d] + windows.padding[d])
        if not count_include_pad:
            start, end = np.maximum(start, 0), np.minimum(end, windows.spatial[d])
        counts = counts[..., None] * (end - start)
    return _divided(total, counts[..., None]).astype(dtype)


def _divided(total, divisor):
    """Integers are rounded towards zero, as in C++."""
    return jax.lax.div(total, jnp.broadcast_to(jnp.asarray(divisor, total.dtype), total.shape))


@op("aten::avg_pool2d", channels_last=True)
def avg_pool2d(
    x, kernel_size, stride=(), padding=(0,), ceil_mode=False, count_include_pad=True, divisor_override=None, *, out
):
    return _avg_pool(x, kernel_size, stride, padding, count_include_pad, divisor_override, out.shape[-2:], n=2)


@op("aten::avg_pool3d", channels_last=True)
def avg_pool3d(
    x, kernel_size, stride=(), padding=(0,), ceil_mode=False, count_include_pad=True, divisor_override=None, *, out
):
    return _avg_pool(x, kernel_size, stride, padding, count_include_pad, divisor_override, out.shape[-3:], n=3)


def _avg_pool_backward(grad, x, n, *arguments):
    def forward(x):
        return logical(_avg_pool(x, *arguments, grad.shape[-n:], n=n))  # type: ignore[call-arg]

    return jax.vjp(forward, x)[1](grad)[0]


@op("aten::avg_pool2d_backward")
def avg_pool2d_backward(grad, x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    return _avg_pool_backward(grad, x, 2, kernel_size, stride, padding, count_include_pad, divisor_override)


@op("aten::avg_pool3d_backward")
def avg_pool3d_backward(grad, x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override):
    return _avg_pool_backward(grad, x, 3, kernel_size, stride, padding, count_include_pad, divisor_override)


def _averaging(size: int, out: int) -> np.ndarray:
    """The matrix (out, size) that averages each of the bins of an adaptive pool."""
    matrix = np.zeros((out, size))
    for i in range(out):
        start, end = i * size // out, math.ceil((i + 1) * size / out)
        matrix[i, start:end] = 1 / (end - start)
    return matrix


@_batched
def _adaptive_avg_pool(x, sizes, *, n: int):
    spatial = x.shape[1:-1]
    if all(size % out == 0 for size, out in zip(spatial, sizes, strict=True)):
        split = [part for size, out in zip(spatial, sizes, strict=True) for part in (out, size // out)]
        return jnp.mean(x.reshape(x.shape[0], *split, x.shape[-1]), tuple(2 + 2 * d for d in range(n)))
    dtype = x.dtype
    x = opmath(x)
    for d in range(n):
        matrix = jnp.asarray(_averaging(spatial[d], sizes[d]), x.dtype)
        x = jnp.moveaxis(jnp.tensordot(x, matrix, ((1 + d,), (1,)), precision="highest"), -1, 1 + d)
    return x.astype(dtype)


@_batched
def _adaptive_max_pool(x, sizes, *, n: int):
    spatial = x.shape[1:-1]
    bins = [[(i * s // out, -(-(i + 1) * s // out)) for i in range(out)] for s, out in zip(spatial, sizes, strict=True)]

    def terms():
        for offset in itertools.product(*(range(max(end - start for start, end in bins[d])) for d in range(n))):
            part, place = x, np.zeros((), np.int32)
            for d in range(n):  # a shorter bin sees its last element again
                at = np.array([min(start + offset[d], end - 1) for start, end in bins[d]], np.int32)
                part = jnp.take(part, at, axis=1 + d)
                place = place * spatial[d] + at.reshape((-1,) + (1,) * (n - 1 - d))
            yield part, jnp.asarray(place)[..., None]

    return _maximum(terms())


@_batched
def _adaptive_max_pool_backward(x, grad, indices, *, n: int):
    batch, *spatial, channels = x.shape
    planes = jnp.zeros((batch, math.prod(spatial), channels), grad.dtype)
    place = (np.arange(batch)[:, None, None], indices.reshape(batch, -1, channels), np.arange(channels))
    return planes.at[place].add(grad.reshape(batch, -1, channels)).reshape(x.shape)


@op("aten::adaptive_max_pool2d", channels_last=True)
def adaptive_max_pool2d(x, output_size, *, out):
    return _adaptive_max_pool(x, out[0].shape[-2:], n=2)


@op("aten::adaptive_max_pool3d", channels_last=True)
def adaptive_max_pool3d(x, output_size, *, out):
    return _adaptive_max_pool(x, out[0].shape[-3:], n=3)


@op("aten::adaptive_max_pool2d_backward", channels_last=True)
def adaptive_max_pool2d_backward(grad, x, indices):
    return _adaptive_max_pool_backward(x, grad, indices, n=2)


@op("aten::adaptive_max_pool3d_backward", channels_last=True)
def adaptive_max_pool3d_backward(grad, x, indices):
    return _adaptive_max_pool_backward(x, grad, indices, n=3)


def _adaptive_avg_pool_backward(grad, x, n):
    return jax.vjp(lambda x: logical(_adaptive_avg_pool(x, grad.shape[-n:], n=n)), x)[1](grad)[0]


@op("aten::_adaptive_avg_pool2d", "aten::adaptive_avg_pool2d", channels_last=True)
def adaptive_avg_pool2d(x, output_size, *, out):
    return _adaptive_avg_pool(x, out.shape[-2:], n=2)


@op("aten::_adaptive_avg_pool3d", "aten::adaptive_avg_pool3d", channels_last=True)
def adaptive_avg_pool3d(x, output_size, *, out):
    return _adaptive_avg_pool(x, out.shape[-3:], n=3)


@op("aten::_adaptive_avg_pool2d_backward")
def adaptive_avg_pool2d_backward(grad, x):
    return _adaptive_avg_pool_backward(grad, x, 2)


@op("aten::_adaptive_avg_pool3d_backward")
def adaptive_avg_pool3d_backward(grad, x):
    return _adaptive_avg_pool_backward(grad, x, 3)
