"""Random bits and the standard distributions made of them.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) gives every element 128 bits from the
operator's seed and the element's number. It is arithmetic on each element alone, so XLA fuses it with what uses the
bits and splits it over devices, and every platform draws the same numbers. XLA's RngBitGenerator has none of these;
jax's keys of this kind exist only since jax 0.10.2.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_ROUNDS = 10
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85


class Words:
    """Four uint32 per element of a shape.

    Args:
        seed: int64 scalar.
        shape: of the tensor that is drawn.
        block: int or uint32 scalar; each gives other bits.
    """

    def __init__(self, seed: Any, shape: tuple[int, ...], block: Any = 0):
        low, high = _halves(jnp.asarray(seed).astype(jnp.uint64))
        count = math.prod(shape)
        if count < 2**32:
            number = jax.lax.iota(jnp.uint32, count), jnp.zeros(count, jnp.uint32)
        else:
            number = _halves(jax.lax.iota(jnp.uint64, count))
        block = jnp.broadcast_to(jnp.asarray(block, jnp.uint32), (count,))
        words = _philox((*number, block, jnp.zeros_like(block)), (low, high))
        self.a, self.b, self.c, self.d = (word.reshape(shape) for word in words)


def _halves(x):
    return x.astype(jnp.uint32), (x >> np.uint64(32)).astype(jnp.uint32)


def _philox(counter, key):
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        low0, high0 = _halves(c0.astype(jnp.uint64) * np.uint64(_MULTIPLIERS[0]))
        low1, high1 = _halves(c2.astype(jnp.uint64) * np.uint64(_MULTIPLIERS[1]))
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + np.uint32(_KEY_STEPS[0]), k1 + np.uint32(_KEY_STEPS[1])
    return c0, c1, c2, c3


def join(high, low):
    """uint64 of two uint32."""
    return high.astype(jnp.uint64) << np.uint64(32) | low.astype(jnp.uint64)


def uniform(high, low, dtype):
    """Uniform on [0, 1), a multiple of 2**-24 (float32, from `high` alone) or 2**-53 (float64), as torch's."""
    if dtype == jnp.float32:
        return (high >> np.uint32(8)).astype(dtype) * np.float32(2.0**-24)
    return (join(high, low) >> np.uint64(11)).astype(dtype) * 2.0**-53


def centred(high, low, dtype):
    """Uniform on [-1/2, 1/2], finest next to 0 and never 0; float32 from `high` alone."""
    if dtype == jnp.float32:
        number = jax.lax.bitcast_convert_type(high, jnp.int32)
    else:
        number = jax.lax.bitcast_convert_type(join(high, low), jnp.int64)
    return (number.astype(dtype) + dtype.type(0.5)) * dtype.type(2.0 ** (-8 * number.dtype.itemsize))


def normal(high, low, dtype):
    """Standard normal, by the inverse of its distribution function; float32 from `high` alone."""
    bound = dtype.type(1) - jnp.finfo(dtype).epsneg  # that of ±1 is infinite
    return dtype.type(math.sqrt(2)) * jax.lax.erf_inv(jnp.clip(2 * centred(high, low, dtype), -bound, bound))


def exponential(high, low, dtype):
    """Standard exponential, never 0; float32 from `high` alone.

    The smaller of U and 1-U is known to full precision, so both ends of the distribution are resolved to 2**-32
    (2**-64).
    """
    bits = high if dtype == jnp.float32 else join(high, low)
    width = 8 * bits.dtype.itemsize
    small = (bits & bits.dtype.type(2 ** (width - 1) - 1)).astype(dtype) + dtype.type(0.5)
    small = small * dtype.type(2.0**-width)
    return -jnp.where(bits >> bits.dtype.type(width - 1) == 0, jnp.log(small), jnp.log1p(-small))


def below(words: Words, p):
    """True with probability `p`, to 2**-32 for an array of float32 or narrower, else to 2**-64. Never for 0, always for
    1, and for nan never.
    """
    if hasattr(p, "ndim") and p.ndim and p.dtype != jnp.float64:
        p = p.astype(jnp.float32)
        return (words.a < (p * np.float32(2.0**32)).astype(jnp.uint32)) | (p >= 1)
    p = jnp.asarray(p, jnp.float64)
    if p.ndim:
        return (join(words.a, words.b) < (p * 2.0**64).astype(jnp.uint64)) | (p >= 1)
    low, high = _halves((p * 2.0**64).astype(jnp.uint64))  # compared in halves: 64-bit elements cost twice as much
    return (words.a < high) | ((words.a == high) & (words.b < low)) | (p >= 1)
