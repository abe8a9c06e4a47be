"""Distributions that are drawn by rejection or inversion, and drawing from a table of weights.

As in torch's CPU kernels the arithmetic is float64: the acceptance tests subtract numbers that are nearly equal. A
rejected element tries again with the next block of its bits until no element is left.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ...lowering import checks
from ..probe import probed, quietly
from ..registry import op
from . import philox


def _contiguous(x, *others, generator=None):
    """The meta tensor of a result with the first argument's dtype, where torch has no meta kernel."""
    shape = torch.broadcast_shapes(x.shape, *(other.shape for other in others if other is not None))
    return torch.empty(shape, dtype=x.dtype, device="meta")


def _like(x, generator=None):
    """The same, with the argument's strides: what torch has as a meta kernel since 2.13."""
    return torch.empty_like(x)


def _until_accepted(attempt, pending, sample):
    """Repeats `attempt(block)`, which gives (accepted, values), and keeps each pending element's first accepted one.

    Blocks are numbered from 1.
    """

    def step(state):
        block, pending, sample = state
        accepted, values = attempt(block)
        return block + np.uint32(1), pending & ~accepted, jnp.where(pending & accepted, values, sample)

    return jax.lax.while_loop(lambda state: state[1].any(), step, (jnp.uint32(1), pending, sample))[2]


# ---- gamma and what is made of it


def _log_gamma_sample(seed, alpha):
    """Logarithm of a Gamma(alpha, 1) sample, float64; nan where alpha is nan or negative.

    Marsaglia and Tsang, "A simple method for generating gamma variables", 2000. Below 1 it draws for alpha + 1 and
    multiplies by U**(1/alpha), which underflows unless that is done in logarithms.
    """
    shape, wide = alpha.shape, jnp.dtype(jnp.float64)
    alpha = alpha.astype(wide)
    valid = alpha >= 0
    small = alpha < 1
    boosted = jnp.where(valid, alpha + small, 1.0)
    d = boosted - 1 / 3
    c = 1 / jnp.sqrt(9 * d)

    def attempt(block):
        words = philox.Words(seed, shape, block)
        x = philox.normal(words.a, words.b, wide)
        y = 1 + c * x
        log_v = 3 * jnp.log(jnp.maximum(y, jnp.finfo(wide).tiny))
        log_u = -philox.exponential(words.c, words.d, wide)
        bound = 0.5 * x * x + d * (1 - y**3 + log_v)
        return (y > 0) & (log_u < jnp.where(jnp.isinf(d), 1, bound)), log_v

    log_v = _until_accepted(attempt, jnp.ones(shape, bool), jnp.zeros(shape, wide))
    words = philox.Words(seed, shape)
    boost = jnp.where(small, -philox.exponential(words.a, words.b, wide) / jnp.where(small, alpha, 1), 0)
    return jnp.where(valid, jnp.log(d) + log_v + boost, jnp.nan)


@op("aten::_standard_gamma", random=True, infer=probed("aten::_standard_gamma", _like))
def standard_gamma(alpha, generator=None, *, seed):
    sample = jnp.exp(_log_gamma_sample(seed, alpha)).astype(alpha.dtype)
    return jnp.maximum(sample, jnp.finfo(alpha.dtype).tiny)


@op("aten::_sample_dirichlet", random=True, infer=probed("aten::_sample_dirichlet", _contiguous))
def sample_dirichlet(alpha, generator=None, *, seed):
    if alpha.size == 0:
        return alpha
    sample = jax.nn.softmax(_log_gamma_sample(seed, alpha), axis=-1 if alpha.ndim else None).astype(alpha.dtype)
    limits = jnp.finfo(alpha.dtype)
    return jnp.clip(sample, limits.tiny, 1 - limits.epsneg)


# ---- counts


def _poisson_by_inversion(seed, rate):
    """For rates below 10: how many values of the distribution function lie below one uniform number."""
    words = philox.Words(seed, rate.shape)
    u = philox.uniform(words.a, words.b, rate.dtype)

    def unfinished(state):
        k, _, total, _ = state
        return (k < 128) & (total <= u).any()  # by 128 the sum has long stopped growing, maybe just below u

    def step(state):
        k, term, total, sample = state
        term = term * rate / (k + 1)
        return k + 1, term, total + term, sample + (total <= u)

    term = jnp.exp(-rate)
    return jax.lax.while_loop(unfinished, step, (jnp.float64(0), term, term, jnp.zeros_like(rate)))[3]


def _poisson_by_rejection(seed, rate, pending):
    """For rates from 10 on: PTRS of Hörmann, "The transformed rejection method for generating Poisson random
    variables", 1993. Where not `pending`, the sample is the rate.
    """
    b = 0.931 + 2.53 * jnp.sqrt(rate)
    a = -0.059 + 0.02483 * b
    inverse_alpha = 1.1239 + 1.1328 / (b - 3.4)
    v_r = 0.9277 - 3.6224 / (b - 2)
    log_rate = jnp.log(rate)

    def attempt(block):
        words = philox.Words(seed, rate.shape, block)
        u = philox.uniform(words.a, words.b, rate.dtype) - 0.5
        v = philox.uniform(words.c, words.d, rate.dtype)
        edge = 0.5 - jnp.abs(u)
        k = jnp.floor((2 * a / edge + b) * u + rate + 0.43)
        inside = (edge >= 0.07) & (v <= v_r)
        outside = (k < 0) | ((edge < 0.013) & (v > edge))
        density = k * log_rate - rate - jax.lax.lgamma(k + 1)
        return inside | (~outside & (jnp.log(v * inverse_alpha / (a / (edge * edge) + b)) <= density)), k

    return _until_accepted(attempt, pending, rate)


@op("aten::poisson", random=True, fallible=True, infer=probed("aten::poisson"))
def poisson(rate, generator=None, *, seed):
    checks.require((rate >= 0).all(), lambda _: RuntimeError("invalid Poisson rate, expected rate to be non-negative"))
    wide = rate.astype(jnp.float64)
    large = wide >= 10
    by_inversion = _poisson_by_inversion(seed, jnp.where(large | ~(wide >= 0), 0, wide))
    by_rejection = _poisson_by_rejection(seed, jnp.where(large, wide, 10), large & jnp.isfinite(wide))
    return jnp.where(large, by_rejection, by_inversion).astype(rate.dtype)


@op("aten::binomial", random=True, infer=probed("aten::binomial", _contiguous))
def binomial(count, prob, generator=None, *, seed):
    n, p = jnp.broadcast_arrays(count.astype(jnp.float64), prob.astype(jnp.float64))
    impossible = (n <= 0) | (p <= 0)
    rarer = jnp.where(impossible, 0.0, jnp.minimum(p, 1 - p))
    words = jax.lax.bitcast_convert_type(seed, jnp.uint32)
    key = jax.random.wrap_key_data(words, impl="threefry2x32")
    sample = jax.random.binomial(key, jnp.where(n > 0, n, 0), jnp.maximum(rarer, 0), dtype=jnp.float64)
    sample = jnp.where(p <= 0.5, sample, n - sample)
    sample = jnp.where(impossible, 0, jnp.where(p >= 1, n, jnp.where(jnp.isnan(p), jnp.nan, sample)))
    return sample.astype(count.dtype)


# ---- drawing from weights


def _multinomial_result(weights, num_samples, replacement=False, *, generator=None):
    categories = weights.shape[-1] if weights.dim() else 1
    one_row = [*(min(size, 1) for size in weights.shape[:-1]), *weights.shape[-1:]]
    row = torch.ones(one_row, dtype=weights.dtype, device="cpu")
    quietly(torch.ops.aten.multinomial.default, row, min(num_samples, max(categories + 1, 2)), replacement)
    return torch.empty((*weights.shape[:-1], num_samples), dtype=torch.int64, device="meta")


def _require_weights(weights, torch_divides):
    """Torch divides by exponential samples where it can, and then its checks are worded in another way."""
    finite, positive = (weights < jnp.inf).all(), (weights >= 0).all()
    if torch_divides:
        error = "probability tensor contains either `inf`, `nan` or element < 0"
        checks.require(finite & positive, lambda _: RuntimeError(error))
    else:
        prefix = "invalid multinomial distribution (encountering probability entry"
        checks.require(positive, lambda _: RuntimeError(f"{prefix} < 0)"))
        checks.require(finite, lambda _: RuntimeError(f"{prefix} = infinity or NaN)"))
    some = (weights > 0).any(-1).all()
    checks.require(some, lambda _: RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)"))


@op("aten::multinomial", random=True, fallible=True, infer=_multinomial_result)
def multinomial(weights, num_samples, replacement=False, *, generator=None, out, seed):
    if weights.size == 0:
        return jnp.zeros(out.shape, jnp.int64)
    _require_weights(weights, torch_divides=num_samples == 1 or not replacement)
    if replacement:
        rows = jnp.atleast_2d(weights).astype(jnp.float64)
        return _with_replacement(seed, rows, num_samples).reshape(out.shape)
    # the smallest of independent exponential times with these rates comes first, then the next
    words = philox.Words(seed, weights.shape)
    wide = jnp.dtype(jnp.promote_types(weights.dtype, jnp.float32))
    scores = weights.astype(wide) / philox.exponential(words.a, words.b, wide)
    return jax.lax.top_k(scores, num_samples)[1].astype(jnp.int64)


def _with_replacement(seed, weights, num_samples):
    rows, categories = weights.shape
    totals = jnp.cumsum(weights, -1)
    words = philox.Words(seed, (rows, num_samples))
    point = philox.uniform(words.a, words.b, weights.dtype) * totals[:, -1:]
    point = jnp.minimum(point, jnp.nextafter(totals[:, -1:], jnp.zeros((), weights.dtype)))  # where it was rounded up
    # the first total beyond the point: never that of a category without weight
    found = jax.vmap(lambda total, point: jnp.searchsorted(total, point, side="right"))(totals, point)
    return jnp.minimum(found, categories - 1).astype(jnp.int64)
