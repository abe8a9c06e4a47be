"""Attention over blocks of queries: the scores of one block exist at a time, so memory grows with the length of the
sequences and not with its square.

A block has whole rows of scores, so its softmax is that of the whole matrix. The backward pass computes the scores once
more, and the bits of dropout too: every row of queries has its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...lowering import precision
from ...lowering.layout import logical
from ..kernels import Kernel, Verdict
from ..random import philox
from . import shared_heads
from .attention_problem import AttentionProblem

#: Bytes of the scores of one block: what the caches of a processor hold. A few arrays of that size exist at a time.
BLOCK_BYTES = 8 << 20

#: Fewer rows than this make slow products; the scores of as many are hardly more than the queries themselves.
FEWEST_ROWS = 32

#: All scores are one block where they are up to as many bytes, and where one head has up to as many of them.
WHOLE_BYTES = 64 << 20
WHOLE_SCORES = 1 << 18

#: Causal attention in blocks is cut into as many bands of queries, each without the keys behind its last query. That
#: saves (BANDS - 1) / (2 * BANDS) of the work.
BANDS = 4


class Options(NamedTuple):
    """What attention depends on beside its tensors.

    Attributes:
        scale: factor of the scores.
        is_causal: query n attends to the keys 0...n.
        dropout: probability of a weight to be dropped.
        seed: of the bits that say which; int64 scalar, None without dropout.
    """

    scale: float
    is_causal: bool = False
    dropout: float = 0.0
    seed: Any = None


def is_whole(queries: Sequence[int], keys: int, itemsize: int = 4) -> bool:
    """Whether the scores are few enough to exist all at once.

    Args:
        queries: sizes of the queries.
        keys: how many there are.
        itemsize: of the queries' dtype.

    Symbolic sizes may be large, and a loop over blocks needs a number of them: such scores exist all at once.
    """
    if not all(isinstance(size, int) for size in (*queries, keys)):
        return True
    scores = queries[-2] * keys
    return scores <= WHOLE_SCORES or math.prod(queries[:-2]) * scores * max(itemsize, 4) <= WHOLE_BYTES


def forward(query: Any, key: Any, value: Any, mask: Any, options: Options) -> tuple[Any, Any]:
    """Attention, and the logarithms of the sums of exponentials by which `backward` finds the weights again.

    Args:
        query, key, value: [..., queries, features], [..., keys, features] and [..., keys, values], with as many heads.
        mask: bool, or added to the scores; broadcast over them. None for none.
    """
    exact, lead = precision.of(query.dtype), query.shape[:-1]
    attended = jnp.zeros((*lead, value.shape[-1]), query.dtype)
    logsumexp = jnp.zeros((*lead, 1), _wide(query))
    for band in _bands(query, key, value, mask, options):

        def block(rows: _Rows, results: Any, band: _Band = band) -> Any:
            scores = band.scores(rows, query)
            sums = jax.nn.logsumexp(scores, axis=-1, keepdims=True)
            sums = jnp.where(jnp.isneginf(sums), 0, sums)  # a row masked as a whole attends to nothing
            weights = band.dropped(rows, jnp.exp(scores - sums)).astype(query.dtype)
            found = jnp.einsum("...qk,...kd->...qd", weights, band.value, precision=exact)
            return rows.put(results[0], found), rows.put(results[1], sums)

        attended, logsumexp = band.each(block, (attended, logsumexp))
    return attended, logsumexp[..., 0]


def backward(
    grad: Any, query: Any, key: Any, value: Any, mask: Any, attended: Any, logsumexp: Any, options: Options,
    wants_mask: bool = False,
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    """Gradients of the queries, the keys, the values, and the mask if it is wanted: it is not a causal one then."""
    exact, wide = precision.of(query.dtype), _wide(query)
    grad_query = jnp.zeros(query.shape, query.dtype)
    grad_mask = jnp.zeros(mask.shape, wide) if wants_mask else None
    of_bands = []
    for band in _bands(query, key, value, mask, options):

        def block(rows: _Rows, results: Any, band: _Band = band) -> Any:
            grad_query, grad_key, grad_value, grad_mask = results
            its, its_grad = rows.of(query), rows.of(grad)
            weights = jnp.exp(band.scores(rows, query) - rows.of(logsumexp[..., None]))
            grad_weights = jnp.einsum(
                "...qd,...kd->...qk", its_grad, band.value, precision=exact, preferred_element_type=wide
            )
            offset = jnp.sum((its_grad * rows.of(attended)).astype(wide), -1, keepdims=True)
            grad_scores = weights * (band.dropped(rows, grad_weights) - offset)
            if grad_mask is not None:
                grad_mask = _with_rows(grad_mask, rows, grad_scores)
            grad_scores = (grad_scores * options.scale).astype(query.dtype)
            found = jnp.einsum("...qk,...kd->...qd", grad_scores, band.key, precision=exact)
            grad_key += jnp.einsum(
                "...qk,...qd->...kd", grad_scores, rows.new(its), precision=exact, preferred_element_type=wide
            )
            weights = band.dropped(rows, weights).astype(query.dtype)
            grad_value += jnp.einsum(
                "...qk,...qd->...kd", weights, rows.new(its_grad), precision=exact, preferred_element_type=wide
            )
            return rows.put(grad_query, found), grad_key, grad_value, grad_mask

        sums = jnp.zeros(band.key.shape, wide), jnp.zeros(band.value.shape, wide)
        grad_query, grad_key, grad_value, grad_mask = band.each(block, (grad_query, *sums, grad_mask))
        of_bands.append((grad_key, grad_value))
    grad_key, grad_value = (_summed(parts, key.shape[-2]).astype(key.dtype) for parts in zip(*of_bands, strict=True))
    return grad_query, grad_key, grad_value, None if grad_mask is None else grad_mask.astype(mask.dtype)


class _Rows(NamedTuple):
    """The queries of one block.

    Attributes:
        start: number of the first.
        length: how many there are.
        known: as many of them, from the first on, were in the block before too; None where no block has such.
    """

    start: Any
    length: int
    known: Any = None

    def of(self, x: Any) -> Any:
        """Those rows of `x`, or its only one, which is for all."""
        if x.shape[-2] == 1 or x.shape[-2] == self.length:
            return x
        return jax.lax.dynamic_slice_in_dim(x, self.start, self.length, axis=-2)

    def put(self, whole: Any, rows: Any) -> Any:
        """`whole` with these rows."""
        if whole.shape == rows.shape:
            return rows
        return jax.lax.dynamic_update_slice_in_dim(whole, rows, self.start, axis=-2)

    def new(self, rows: Any) -> Any:
        """The rows with zeros for those that were in the block before: a sum over blocks has them already."""
        if self.known is None:
            return rows
        return jnp.where(jnp.arange(self.length)[:, None] >= self.known, rows, 0)


class _Band(NamedTuple):
    """Queries that attend to the same keys.

    Attributes:
        start, stop: their numbers.
        block: how many of them make a block.
        key, value, mask: those keys, their values, and the mask's columns for them.
    """

    start: int
    stop: int
    block: int
    key: Any
    value: Any
    mask: Any
    options: Options

    def each(self, body: Callable[[_Rows, Any], Any], results: Any) -> Any:
        """The results after all blocks: `body` gives from a block and the results before it those after it. The last
        block begins early enough to be as long as the others.
        """
        count = -(-(self.stop - self.start) // self.block)
        if count <= 1:
            return body(_Rows(self.start, self.stop - self.start), results)
        overlaps = (self.stop - self.start) % self.block != 0

        def step(number: Any, results: Any) -> Any:
            first = self.start + number * self.block
            start = jnp.minimum(first, self.stop - self.block)
            return body(_Rows(start, self.block, first - start if overlaps else None), results)

        return jax.lax.fori_loop(0, count, step, results)

    def scores(self, rows: _Rows, query: Any) -> Any:
        """What the softmax is taken of."""
        exact, options = precision.of(query.dtype), self.options
        scores = jnp.einsum(
            "...qd,...kd->...qk", rows.of(query), self.key, precision=exact, preferred_element_type=_wide(query)
        )
        scores = scores * options.scale
        if options.is_causal:
            queries, keys = (jax.lax.broadcasted_iota(jnp.int32, scores.shape[-2:], axis) for axis in (0, 1))
            scores = jnp.where(keys <= queries + jnp.asarray(rows.start, jnp.int32), scores, -jnp.inf)
        if self.mask is not None:
            mask = rows.of(self.mask)
            scores = jnp.where(mask, scores, -jnp.inf) if mask.dtype == bool else scores + mask.astype(scores.dtype)
        return scores

    def dropped(self, rows: _Rows, weights: Any) -> Any:
        """The weights after dropout; the same for their gradients."""
        p, seed = self.options.dropout, self.options.seed
        if p == 0:
            return weights
        *lead, _, keys = weights.shape

        def of_row(row: Any) -> Any:
            return philox.below(philox.Words(seed, (*lead, keys), row), p)

        drop = jax.vmap(of_row, out_axes=-2)(rows.start + jnp.arange(rows.length))
        return jnp.where(drop, 0, weights * (0 if p == 1 else 1 / (1 - p)))


def _bands(query: Any, key: Any, value: Any, mask: Any, options: Options) -> Iterator[_Band]:
    length, keys = query.shape[-2], key.shape[-2]
    if is_whole(query.shape, keys, query.dtype.itemsize):
        yield _Band(0, length, max(length, 1), key, value, mask, options)
        return
    bands = BANDS if options.is_causal else 1
    for band in range(bands):
        start, stop = length * band // bands, length * (band + 1) // bands
        if start == stop:
            continue
        known = min(stop, keys) if options.is_causal else keys
        row_bytes = math.prod(query.shape[:-2]) * known * _wide(query).itemsize
        block = max(BLOCK_BYTES // row_bytes // FEWEST_ROWS, 1) * FEWEST_ROWS
        columns = mask if mask is None or mask.shape[-1] == 1 else mask[..., :known]
        block = min(block, stop - start)
        yield _Band(start, stop, block, key[..., :known, :], value[..., :known, :], columns, options)


def _with_rows(grad_mask: Any, rows: _Rows, grad_scores: Any) -> Any:
    """The mask's gradient with what a block of scores gives for it."""
    if grad_mask.shape[-2] == 1:
        return grad_mask + _summed_to(rows.new(grad_scores), grad_mask.shape)
    return rows.put(grad_mask, _summed_to(grad_scores, (*grad_mask.shape[:-2], rows.length, grad_mask.shape[-1])))


def _summed_to(x: Any, shape: tuple[int, ...]) -> Any:
    """The gradient of what was broadcast from `shape` to the sizes of `x`."""
    x = x.sum(tuple(range(x.ndim - len(shape))))
    return x.sum([axis for axis, size in enumerate(shape) if size != x.shape[axis]], keepdims=True)


def _summed(parts: Sequence[Any], keys: int) -> Any:
    """The sum over bands, of which the earlier know fewer keys."""
    total = parts[-1]
    for part in parts[:-1]:
        total = total.at[..., : part.shape[-2], :].add(part)
    missing = keys - total.shape[-2]
    return total if not missing else jnp.pad(total, [(0, 0)] * (total.ndim - 2) + [(0, missing), (0, 0)])


def _wide(x: Any) -> np.dtype:
    """The dtype of sums over elements of `x`."""
    return np.dtype(np.float32) if x.dtype.itemsize < 4 else x.dtype


# ---- the rows


def accepts(problem: AttentionProblem) -> Verdict:
    """Every attention."""
    return True


def _forward(query: Any, key: Any, value: Any, mask: Any, options: Options) -> tuple[Any, Any]:
    query, key, value = logical([query, key, value])
    key, value = shared_heads.repeated(key, query), shared_heads.repeated(value, query)
    return forward(query, key, value, mask, options)


def _backward(
    grad: Any, query: Any, key: Any, value: Any, mask: Any, attended: Any, logsumexp: Any, options: Options,
    wants_mask: bool,
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    grad, query, key, value, attended, logsumexp = logical([grad, query, key, value, attended, logsumexp])
    sizes = key.shape
    key, value = shared_heads.repeated(key, query), shared_heads.repeated(value, query)
    grads = backward(grad, query, key, value, mask, attended, logsumexp, options, wants_mask)
    return grads[0], shared_heads.summed(grads[1], sizes), shared_heads.summed(grads[2], sizes), grads[3]


def _thresholds() -> dict[str, Any]:
    return {
        "bytes of scores in a block": BLOCK_BYTES,
        "most bytes of scores that are one block": WHOLE_BYTES,
        "most scores of a head that are one block": WHOLE_SCORES,
    }


KERNEL = Kernel("XLA, in blocks", accepts, _forward, thresholds=_thresholds)
GRADIENT = Kernel("XLA, in blocks", accepts, _backward, thresholds=_thresholds)
