"""Distances between the rows of two matrices."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from ..gradients import absolute, root
from ..linalg.matmul_xla import product
from ..registry import op

#: with more rows than this, torch's kernel takes Euclidean distances from matrix products unless told otherwise
_MANY_ROWS = 25


@op("aten::_cdist_forward", products=True)
def cdist_forward(x, y, p, compute_mode, *, out):
    many = max(x.shape[-2], y.shape[-2]) > _MANY_ROWS
    if x.size == 0 or y.size == 0:
        return jnp.zeros(out.shape, x.dtype)
    if p == 2 and (compute_mode == 1 or (many and compute_mode in (None, 0))):
        return _euclidean(x, y)
    size = absolute(x[..., :, None, :] - y[..., None, :, :])
    if p == 0:
        return jnp.where(jnp.isnan(size), size, size != 0).sum(-1)
    if p == 1:
        return size.sum(-1)
    if p == 2:
        return root(jnp.square(size).sum(-1))
    if p == float("inf"):
        return jnp.where(jnp.isnan(size), 0, size).max(-1)  # torch's kernel passes over nans in this one
    return root((size**p).sum(-1), p)


def _euclidean(x, y):
    squares = jnp.square(x).sum(-1)[..., :, None] + jnp.square(y).sum(-1)[..., None, :]
    squares = squares - 2 * product(x, y.mT)
    return root(jnp.where(squares < 0, 0, squares))


@op("aten::_cdist_backward")
def cdist_backward(grad, x, y, p, distances, *, out):
    """The gradient of x."""
    if p == 0 or grad.size == 0 or x.size == 0:
        return jnp.zeros(out.shape, x.dtype)
    difference = x[..., :, None, :] - y[..., None, :, :]
    grad, distances = grad[..., None], distances[..., None]
    size, sign = jnp.abs(difference), jnp.sign(difference)
    if p == 1:
        parts = grad * sign
    elif p == float("inf"):
        parts = grad * sign * (size == distances)
    elif p == 2:
        parts = jnp.where(distances == 0, 0, grad * difference / distances)
    else:
        factor = jnp.where((size == 0) if p < 1 else False, 0, size ** (p - 1))
        parts = jnp.where(distances == 0, 0, sign * factor * grad / distances ** (p - 1))
    return jnp.broadcast_to(parts.sum(-2), out.shape)


# ---- between the rows of one matrix, each pair once: (0, 1), (0, 2), ..., (1, 2), ...


def _pairs(x):
    first, second = np.triu_indices(x.shape[0], 1)
    return first.astype(np.int32), second.astype(np.int32)


@op("aten::_pdist_forward")
def pdist_forward(x, p=2.0, *, out):
    if 0 in x.shape or 0 in out.shape:
        return jnp.zeros(out.shape, x.dtype)
    first, second = _pairs(x)
    size = absolute(x[first] - x[second])
    if p == 0:
        return jnp.where(jnp.isnan(size), size, size != 0).sum(-1)
    if p == 1:
        return size.sum(-1)
    if p == 2:
        return root(jnp.square(size).sum(-1))
    if p == float("inf"):
        return size.max(-1)
    return root((size**p).sum(-1), p)


@op("aten::_pdist_backward")
def pdist_backward(grad, x, p, distances, *, out):
    if p == 0 or 0 in x.shape or grad.size == 0:
        return jnp.zeros(out.shape, x.dtype)
    # as a full matrix of pairs, so that nothing is scattered
    n = x.shape[0]
    first, second = _pairs(x)
    place = np.zeros((n, n), np.int32)
    place[first, second] = place[second, first] = np.arange(len(first))
    apart = ~np.eye(n, dtype=bool)
    grad, distances = (jnp.where(apart, each[place], 0) for each in (grad, distances))
    return cdist_backward(grad, x, x, p, distances, out=out)
