"""Gathering and scattering by index tensors, and embeddings."""

from __future__ import annotations

import jax.numpy as jnp

from .registry import op


def _index_tuple(indices):
    return tuple(slice(None) if part is None else part for part in indices)


@op("aten::index.Tensor", "aten::_unsafe_index.Tensor", host_inputs=True)
def index(x, indices):
    if any(part is not None and part.dtype in (jnp.bool_, jnp.uint8) for part in indices):
        raise NotImplementedError("a boolean index has a result whose size depends on data")
    return x[_index_tuple(indices)]


@op("aten::index_put", "aten::_unsafe_index_put", host_inputs=True)
def index_put(x, indices, values, accumulate=False):
    if any(part is not None and part.dtype in (jnp.bool_, jnp.uint8) for part in indices):
        return _masked_put(x, indices, values, accumulate)
    place = x.at[_index_tuple(indices)]
    return place.add(values) if accumulate else place.set(values)


def _masked_put(x, indices, values, accumulate):
    """`x[mask] = scalar`; with more than one value the places would depend on data."""
    (mask,) = (part for part in indices if part is not None)
    axis = next(i for i, part in enumerate(indices) if part is not None)
    if values.size != 1:
        raise NotImplementedError("assigning a tensor of several values through a boolean mask is not supported yet")
    mask = mask.astype(bool).reshape((1,) * axis + mask.shape + (1,) * (x.ndim - axis - mask.ndim))
    value = values.reshape(())
    return jnp.where(mask, x + value if accumulate else value, x)


@op("aten::gather")
def gather(x, dim, index, *, sparse_grad=False):
    if x.ndim == 0:
        return jnp.broadcast_to(x, index.shape)
    if index.size == 0:
        return jnp.zeros(index.shape, x.dtype)
    dim %= x.ndim
    window = tuple(slice(None) if d == dim else slice(0, index.shape[d]) for d in range(x.ndim))
    return jnp.take_along_axis(x[window], index, axis=dim)


def _places(x, dim, index):
    grid = list(jnp.meshgrid(*(jnp.arange(n) for n in index.shape), indexing="ij", sparse=True))
    grid[dim] = index
    return x.at[tuple(grid)]


@op("aten::scatter.src", "aten::scatter.value", "aten::scatter.reduce", "aten::scatter.value_reduce")
def scatter(x, dim, index, source, *, reduce=None):
    if x.ndim == 0:
        x, index, source = x.reshape(1), index.reshape(1), jnp.asarray(source).reshape(-1)
        return scatter(x, 0, index, source, reduce=reduce).reshape(())
    source = jnp.asarray(source).astype(x.dtype)
    if index.size == 0:  # of any rank, torch lets it pass
        return x
    dim %= x.ndim
    if source.ndim:
        source = source[tuple(slice(0, n) for n in index.shape)]
    place = _places(x, dim, index)
    return {None: place.set, "add": place.add, "multiply": place.multiply}[reduce](source)


@op("aten::scatter_add")
def scatter_add(x, dim, index, source):
    return scatter(x, dim, index, source, reduce="add")


@op("aten::index_select")
def index_select(x, dim, index):
    if x.ndim == 0:
        return x
    return jnp.take(x, index.reshape(-1), axis=dim)


@op("aten::index_add")
def index_add(x, dim, index, source, *, alpha=1):
    if x.ndim == 0:
        return x + alpha * source.reshape(())
    place = (slice(None),) * (dim % x.ndim) + (index.reshape(-1),)
    return x.at[place].add((alpha * source).astype(x.dtype))


@op("aten::embedding")
def embedding(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    return jnp.take(weight, indices, axis=0)


@op("aten::embedding_dense_backward")
def embedding_dense_backward(grad, indices, num_weights, padding_idx, scale_grad_by_freq):
    indices = indices.reshape(-1)
    grad = grad.reshape(indices.size, -1)
    if scale_grad_by_freq:
        counts = jnp.zeros(num_weights, grad.dtype).at[indices].add(1)
        grad = grad / counts[indices][:, None]
    if padding_idx >= 0:
        grad = jnp.where((indices == padding_idx)[:, None], 0, grad)
    return jnp.zeros((num_weights, grad.shape[-1]), grad.dtype).at[indices].add(grad)
