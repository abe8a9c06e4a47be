"""Random operators: Philox (XLA's RngBitGenerator) from a 64-bit seed that is an input of the graph."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from .. import dtypes
from .registry import op


def key(seed):
    """A jax key for XLA's Philox generator, whose state is (key, counter)."""
    words = jax.lax.bitcast_convert_type(seed, jnp.uint32)
    return jax.random.wrap_key_data(jnp.concatenate([words, jnp.zeros(2, jnp.uint32)]), impl="rbg")


def _float(dtype):
    """The dtype to sample in: jax draws 16-bit floats with 16 random bits or fewer, torch from float32."""
    dtype = dtypes.to_numpy(dtype)
    return jnp.float32 if dtype.itemsize < 4 else dtype


def uniform01(seed, shape, dtype):
    """Uniform on [0, 1)."""
    return jax.random.uniform(key(seed), shape, dtype)


@op("aten::uniform", random=True)
def uniform(x, low=0.0, high=1.0, *, generator=None, seed, input_spec):
    sample = uniform01(seed, x.shape, _float(input_spec.dtype))
    return (low + sample * (high - low)).astype(x.dtype)


@op("aten::normal_functional", random=True)
def normal(x, mean=0.0, std=1.0, *, generator=None, seed, input_spec):
    return (mean + std * jax.random.normal(key(seed), x.shape, _float(input_spec.dtype))).astype(x.dtype)


@op("aten::bernoulli.p", random=True)
def bernoulli_p(x, p=0.5, *, generator=None, seed):
    return (uniform01(seed, x.shape, jnp.float32) < p).astype(x.dtype)


@op("aten::bernoulli", random=True)
def bernoulli(x, *, generator=None, seed):
    return (uniform01(seed, x.shape, jnp.float32) < x).astype(x.dtype)


@op("aten::bernoulli.Tensor", random=True)
def bernoulli_tensor(x, p, *, generator=None, seed):
    return (uniform01(seed, x.shape, jnp.float32) < p).astype(x.dtype)


@op("aten::native_dropout", random=True)
def native_dropout(x, p, train, *, seed):
    if not train or p == 0:
        return x, jnp.ones(x.shape, bool)
    keep = uniform01(seed, x.shape, jnp.float32) >= p
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return jnp.where(keep, x * jnp.asarray(scale, x.dtype), 0), keep


@op("aten::native_dropout_backward")
def native_dropout_backward(grad, mask, scale):
    return jnp.where(mask, grad * jnp.asarray(scale, grad.dtype), 0)


@op("aten::random.from", "aten::random.to", "aten::random", random=True)
def random(x, *bounds, generator=None, seed):
    if bounds and bounds[-1] is not None:
        low, high = (0, bounds[0]) if len(bounds) == 1 else bounds
    else:
        low = bounds[0] if bounds else 0
        info = jnp.finfo(x.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else None
        high = 2 if x.dtype == jnp.bool_ else (2 ** (info.nmant + 1) if info else int(jnp.iinfo(x.dtype).max)) + 1
    bits = jax.random.bits(key(seed), x.shape, jnp.uint64)
    return (low + (bits % jnp.uint64(high - low)).astype(jnp.int64)).astype(x.dtype)


@op("aten::randperm", random=True)
def randperm(n, *, seed, out, **options):
    return jax.random.permutation(key(seed), n).astype(dtypes.to_numpy(out.dtype))


@op("aten::exponential", random=True)
def exponential(x, lambd=1.0, *, generator=None, seed, input_spec):
    return (jax.random.exponential(key(seed), x.shape, _float(input_spec.dtype)) / lambd).astype(x.dtype)


# ---- the forms that torch.compile's graphs hold; on a lazy tensor they arrive as a fill of an empty one


@op("aten::rand", "aten::rand_like", random=True)
def rand(*args, out, seed, **options):
    return uniform01(seed, out.shape, _float(out.dtype)).astype(dtypes.to_numpy(out.dtype))


@op("aten::randn", "aten::randn_like", random=True)
def randn(*args, out, seed, **options):
    return jax.random.normal(key(seed), out.shape, _float(out.dtype)).astype(dtypes.to_numpy(out.dtype))


def _integers(low, high, out, seed):
    return random(jnp.zeros(out.shape, dtypes.to_numpy(out.dtype)), low, high, seed=seed)


@op("aten::randint", random=True)
def randint(high, size, *, out, seed, **options):
    return _integers(0, high, out, seed)


@op("aten::randint.low", random=True)
def randint_low(low, high, size, *, out, seed, **options):
    return _integers(low, high, out, seed)


@op("aten::randint_like", random=True)
def randint_like(x, high, *, out, seed, **options):
    return _integers(0, high, out, seed)


@op("aten::randint_like.low_dtype", random=True)
def randint_like_low(x, low, high, *, out, seed, **options):
    return _integers(low, high, out, seed)
