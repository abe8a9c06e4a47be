"""Operators that rearrange elements: views (which functionalization has made pure), joins and splits."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ...ir import dtypes, lowering_context
from ...ir.spec import contiguous_strides, storage_size
from ...lowering import aten_bridge, layout
from ...lowering.layout import ChannelsLast, Permuted, Repeated, Taken, Transposed, axis, logical, physical
from ..linalg.matmul_kernels import takes_transposed
from ..registry import op


@op(
    "aten::view", "aten::_unsafe_view", "aten::reshape", "aten::_reshape_alias", "aten::squeeze", "aten::squeeze.dim",
    "aten::squeeze.dims", "aten::unsqueeze", "aten::flatten.using_ints",
    view=True, transposed=True, channels_last=True, repeated=True,
)  # fmt: skip
def view(x, *shape, out):
    if isinstance(x, Repeated):
        return x.viewed(out.shape)
    if isinstance(x, ChannelsLast | Transposed) and len(out.shape) > 2 and x.shape[:2] == tuple(out.shape[:2]):
        images = x if isinstance(x, ChannelsLast) else ChannelsLast(x.physical) if x.ndim == 3 else None
        if images is not None:  # pixels become rows, as for a transformer, or rows pixels
            batch, channels, *space = out.shape
            return ChannelsLast(images.physical.reshape(batch, *space, channels))
    return _of_batch(jnp.reshape, x, out.shape)


@op("aten::expand", view=True, transposed=True)
def expand(x, size, *, implicit=False, out):
    repeated = None if isinstance(x, Transposed) else Repeated.of(x, out.shape)
    return repeated or _of_batch(jnp.broadcast_to, x, out.shape)


def _of_batch(function, x, shape):
    """function(x, shape); matrices that are `Transposed` stay so if only what is before them changes."""
    if isinstance(x, Transposed) and x.shape[-2:] == tuple(shape[-2:]):
        return Transposed(function(x.physical, (*shape[:-2], *x.physical.shape[-2:])))
    return function(logical(x), shape)


@op("aten::t", view=True, transposed=True)
def t(x, *, out):
    return _turn(x, out) if x.ndim == 2 else x


@op("aten::transpose.int", view=True, channels_last=True, transposed=True, permuted=True)
def transpose(x, dim0, dim1, *, out):
    if x.ndim == 0:
        return x
    dims = list(range(x.ndim))
    dims[dim0], dims[dim1] = dims[dim1], dims[dim0]
    if not isinstance(x, ChannelsLast | Permuted) and dims == [*range(x.ndim - 2), x.ndim - 1, x.ndim - 2]:
        return _turn(x, out)
    return layout.permute(logical(x, (ChannelsLast, Permuted)), dims)


def _turn(x, out):
    """The matrices of `x` transposed; they stay as they lie where what multiplies them takes them so."""
    if isinstance(x, Transposed):
        return x.physical
    return Transposed(x) if takes_transposed(out.device.platform, x.dtype) else x.mT


@op("aten::permute", view=True, channels_last=True, permuted=True)
def permute(x, dims):
    return layout.permute(x, dims)


@op("aten::slice.Tensor", view=True, channels_last=True, permuted=True)
def slice_(x, dim=0, start=None, end=None, step=1, *, out):
    size = x.shape[dim]
    if not all(bound is None or isinstance(bound, int) for bound in (start, end, size)):  # symbolic sizes
        start = 0 if start is None else start
        start = size + start if isinstance(start, int) and start < 0 else start
        return _part(x, dim, start, start + out.shape[dim] * step, step)
    start, stop, step = slice(start, end, step).indices(size)
    return _part(x, dim, start, max(start, stop), step)


@op("aten::narrow_copy", channels_last=True, permuted=True)
def narrow_copy(x, dim, start, length):
    start += x.shape[dim] if start < 0 else 0
    return _part(x, dim, start, start + length)


def _part(x, dim, start, stop, step=1):
    """x[start:stop:step] in one dimension, in the order of `x`."""
    if isinstance(x, ChannelsLast):
        return ChannelsLast(jax.lax.slice_in_dim(x.physical, start, stop, step, axis(dim, x.ndim)))
    if isinstance(x, Permuted):
        return Permuted(jax.lax.slice_in_dim(x.physical, start, stop, step, x.dims[dim]), x.dims)
    return jax.lax.slice_in_dim(x, start, stop, step, dim)


@op("aten::select.int", view=True, permuted=True)
def select(x, dim, index):
    if isinstance(x, Permuted):
        gone = x.dims[dim]
        dims = tuple(where - (where > gone) for where in x.dims if where != gone)
        part = jax.lax.index_in_dim(x.physical, index, gone, keepdims=False)
        if dims == tuple(range(part.ndim)):
            return part
        return Permuted(part, dims, Taken(x.physical, gone, index % x.physical.shape[gone]))
    return jax.lax.index_in_dim(x, index, dim, keepdims=False)


@op("aten::diagonal", view=True)
def diagonal(x, offset=0, dim1=0, dim2=1):
    return jnp.diagonal(x, offset, dim1, dim2)


@op("aten::unfold", view=True)
def unfold(x, dimension, size, step, *, out):
    if x.ndim == 0:
        return x.reshape(out.shape)
    dimension %= x.ndim
    starts = np.arange(out.shape[dimension]) * step
    windows = jnp.take(x, starts[:, None] + np.arange(size), axis=dimension)
    return jnp.moveaxis(windows, dimension + 1, -1)


@op(
    "aten::split.Tensor", "aten::split_with_sizes", "aten::unsafe_split.Tensor", view=True, channels_last=True,
    permuted=True,
)  # fmt: skip
def split(x, sizes, dim=0, *, out):
    ends = np.cumsum([0] + [spec.shape[dim] for spec in out])
    return [_part(x, dim, start, end) for start, end in itertools.pairwise(ends)]


@op("aten::unbind.int", view=True, permuted=True)
def unbind(x, dim=0):
    return [select(x, dim, index) for index in range(x.shape[dim])]


@op("aten::as_strided", view=True)
def as_strided(x, size, stride, storage_offset=None, *, input_spec, out):
    return strided_read(strided_storage(x, input_spec), out.shape, out.stride, out.offset - input_spec.offset)


def strided_storage(x, spec):
    """The flat memory behind `x`, seen from its own first element: what a tensor with these strides would cover."""
    if spec.is_contiguous:
        return x.reshape(-1)
    size = storage_size(spec.shape, spec.stride)
    return jnp.zeros(size, x.dtype).at[_positions(spec.shape, spec.stride)].set(x.reshape(-1))


def strided_read(flat, shape, stride, offset):
    """The tensor with these strides over flat memory."""
    if offset == 0 and stride == contiguous_strides(shape) and flat.size == np.prod(shape, dtype=np.int64):
        return flat.reshape(shape)
    return flat[offset + _positions(shape, stride)].reshape(shape)


def _positions(shape, stride) -> np.ndarray:
    positions = np.zeros((), np.int64)
    for size, step in zip(shape, stride, strict=True):
        positions = positions[..., None] + np.arange(size) * step
    return positions.reshape(-1)


@op("aten::view_as_real", view=True)
def view_as_real(x):
    return jnp.stack([jnp.real(x), jnp.imag(x)], axis=-1)


@op("aten::view_as_complex", view=True)
def view_as_complex(x):
    return jax.lax.complex(x[..., 0], x[..., 1])


# ---- the inverses of views: what a write through a view leaves in its base


# Joined, not scattered: XLA makes a scatter to one place a dynamic-update-slice, and on the CPU fuses into one that
# works in place what its update reads. `y[1:] = y[:-1]` on a view then read what it had just written (jaxlib 0.10.2).


@op("aten::slice_scatter")
def slice_scatter(x, source, dim=0, start=None, end=None, step=1):
    dim %= x.ndim
    size = x.shape[dim]
    start, stop, step = slice(start, end, step).indices(size)
    count = len(range(start, stop, step))
    if count == 0 or x.size == 0:
        return x
    source = jnp.broadcast_to(source, (*x.shape[:dim], count, *x.shape[dim + 1 :])).astype(x.dtype)
    if step == 1:
        before = jax.lax.slice_in_dim(x, 0, start, axis=dim)
        after = jax.lax.slice_in_dim(x, start + count, size, axis=dim)
        return concatenate([before, source, after], dim)
    last = start + (count - 1) * step
    padding = [(0, 0, 0)] * x.ndim
    padding[dim] = (start, size - 1 - last, step - 1)
    spread = jax.lax.pad(source, jnp.zeros((), x.dtype), padding)
    written = np.zeros(size, bool)
    written[start:stop:step] = True
    return jnp.where(written.reshape([-1 if d == dim else 1 for d in range(x.ndim)]), spread, x)


def _infer_select_scatter(x, source, dim, index):
    x.select(dim, index)  # checks the index, as the meta kernel does not
    return torch.ops.aten.select_scatter.default(x, source, dim, index)


@op("aten::select_scatter", infer=_infer_select_scatter)
def select_scatter(x, source, dim, index):
    dim %= x.ndim
    index %= x.shape[dim]
    return slice_scatter(x, jnp.expand_dims(source, dim), dim, index, index + 1)


@op("aten::diagonal_scatter")
def diagonal_scatter(x, source, offset=0, dim1=0, dim2=1):
    rows, columns = x.shape[dim1], x.shape[dim2]
    length = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    i = np.arange(length)
    moved = jnp.moveaxis(x, (dim1, dim2), (-2, -1))
    moved = moved.at[..., i + max(0, -offset), i + max(0, offset)].set(source.astype(x.dtype))
    return jnp.moveaxis(moved, (-2, -1), (dim1, dim2))


def _infer_as_strided_scatter(x, source, size, stride, storage_offset=None):
    if x.device.type == "cpu":  # a stand-in of one element, which is asked for other errors
        return x
    held = x.untyped_storage().nbytes() // x.dtype.itemsize
    offset = x.storage_offset() if storage_offset is None else storage_offset
    if 0 not in size and offset + storage_size(size, stride) > held:  # the CPU kernel says so, the meta kernel does not
        torch.empty(held, dtype=x.dtype, device="cpu").as_strided(size, stride, offset)
    return torch.ops.aten.as_strided_scatter.default(x, source, size, stride, storage_offset)


@op("aten::as_strided_scatter", infer=_infer_as_strided_scatter)
def as_strided_scatter(x, source, size, stride, storage_offset=None, *, input_spec):
    flat = strided_storage(x, input_spec)
    offset = (input_spec.offset if storage_offset is None else storage_offset) - input_spec.offset
    flat = flat.at[offset + _positions(tuple(size), tuple(stride))].set(source.astype(x.dtype).reshape(-1))
    return strided_read(flat, input_spec.shape, input_spec.stride, 0)


# ---- gradients of views


@op("aten::slice_backward")
def slice_backward(grad, input_sizes, dim, start, end, step):
    return slice_scatter(jnp.zeros(input_sizes, grad.dtype), grad, dim, start, end, step)


@op("aten::select_backward")
def select_backward(grad, input_sizes, dim, index):
    return select_scatter(jnp.zeros(input_sizes, grad.dtype), grad, dim, index)


@op("aten::diagonal_backward")
def diagonal_backward(grad, input_sizes, offset, dim1, dim2):
    return diagonal_scatter(jnp.zeros(input_sizes, grad.dtype), grad, offset, dim1, dim2)


@op("aten::unfold_backward")
def unfold_backward(grad, input_sizes, dim, size, step):
    if not input_sizes:
        return grad.reshape(())
    dim %= len(input_sizes)
    windows = jnp.moveaxis(grad, -1, dim + 1)
    starts = np.arange(grad.shape[dim]) * step
    index = (slice(None),) * dim + (starts[:, None] + np.arange(size),)
    found = jnp.zeros(input_sizes, grad.dtype).at[index]
    # of bools where it takes a write to a window back to what the window shows
    return found.max(windows) if grad.dtype == bool else found.add(windows)


# ---- joining and repeating


def concatenate(parts, dim):
    """`jnp.concatenate` without the empty parts: XLA:CPU aborts the process over some programs that have them
    (`SmallVector unable to grow`, jaxlib 0.10.2).
    """
    return jnp.concatenate([x for x in parts if x.size] or parts, axis=dim)


@op("aten::cat", channels_last=True)
def cat(tensors, dim=0, *, out):
    if any(isinstance(x, ChannelsLast) for x in tensors) and all(x.ndim == len(out.shape) for x in tensors):
        parts = [physical(x).astype(dtypes.to_numpy(out.dtype)) for x in tensors]
        # XLA's takes two to ten times as long as torch's
        if lowering_context.current().has_kernel_thread and len(out.shape) == 4:
            like = ChannelsLast.described(out.shape, parts[0].dtype)
            (whole,) = aten_bridge.call("aten::cat", [[ChannelsLast(part) for part in parts], dim], [like])
            return whole
        return ChannelsLast(jnp.concatenate(parts, axis=axis(dim, len(out.shape))))
    tensors = logical(tensors)
    dtype = dtypes.to_numpy(out.dtype)
    # torch lets tensors of shape (0,) take part whatever the others' rank
    parts = [x.astype(dtype) for x in tensors if x.ndim == len(out.shape)]
    return concatenate(parts, dim) if out.numel else jnp.zeros(out.shape, dtype)


@op("aten::stack", permuted=True)
def stack(tensors, dim=0, *, out):
    dtype = dtypes.to_numpy(out.dtype)
    if dim == 0 and all(isinstance(x, Permuted) and x.dims == (0, 2, 1, 3) for x in tensors):
        # gradients of queries, keys and values: they are permuted back to where one projection made them, side by side
        return layout.permute(jnp.stack([x.physical.astype(dtype) for x in tensors], axis=2), (2, 0, 3, 1, 4))
    return jnp.stack([x.astype(dtype) for x in logical(tensors)], axis=dim)


@op("aten::repeat")
def repeat(x, repeats, *, out):
    return jnp.tile(x, repeats)


@op("aten::flip")
def flip(x, dims):
    return jnp.flip(x, tuple(dims)) if x.ndim else x


@op("aten::roll")
def roll(x, shifts, dims=()):
    if not dims:
        return jnp.roll(x.reshape(-1), shifts[0]).reshape(x.shape)
    return jnp.roll(x, shifts, axis=tuple(dims))


@op("aten::constant_pad_nd")
def constant_pad_nd(x, pad, value=0):
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    widths = [(0, 0)] * (x.ndim - len(pairs)) + list(reversed(pairs))
    return jax.lax.pad(x, jnp.asarray(value).astype(x.dtype), [(low, high, 0) for low, high in widths])


@op(*(f"aten::replication_pad{n}d" for n in (1, 2, 3)))
def replication_pad(x, padding):
    for d, (low, high) in enumerate(zip(padding[::2], padding[1::2], strict=True)):
        dim = x.ndim - 1 - d
        size = x.shape[dim]
        x = jnp.take(x, np.clip(np.arange(-low, size + high), 0, size - 1), axis=dim)
    return x


@op(*(f"aten::replication_pad{n}d_backward" for n in (1, 2, 3)))
def replication_pad_backward(grad, x, padding):
    return jax.vjp(lambda x: replication_pad(x, padding), x)[1](grad)[0]
