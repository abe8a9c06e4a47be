"""Philox4x32-10 against the known answers of Random123 (kat_vectors), and what is made of its bits."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from lazy_runtime.ir import dtypes
from lazy_runtime.ops.random import philox


@pytest.fixture(autouse=True)
def x64():
    with dtypes.x64():
        yield


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_known_answers(counter, key, answer):
    words = philox._philox([jnp.uint32(word) for word in counter], [jnp.uint32(word) for word in key])
    assert " ".join(f"{int(word):08x}" for word in words) == answer


def every(words):
    return np.stack([np.asarray(word) for word in (words.a, words.b, words.c, words.d)])


def test_element_and_block_are_the_counter_and_the_seed_is_the_key():
    words = philox.Words(jnp.int64(-1), (2, 3), block=7)
    assert words.a.shape == (2, 3)
    expected = philox._philox([jnp.uint32(word) for word in (5, 0, 7, 0)], [jnp.uint32(0xFFFFFFFF)] * 2)
    assert every(words)[:, 1, 2].tolist() == [int(word) for word in expected]


def test_seeds_blocks_and_elements_share_no_bits():
    drawn = [every(philox.Words(jnp.int64(seed), (1000,), block)) for seed in (0, 1, 2**32) for block in (0, 1)]
    assert np.unique(np.concatenate(drawn, axis=None)).size > 24_000 - 10  # 0.07 pairs are expected to be equal


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_extreme_bits(dtype):
    dtype = jnp.dtype(dtype)
    zeros, ones = jnp.uint32(0), jnp.uint32(0xFFFFFFFF)
    assert philox.uniform(zeros, zeros, dtype) == 0
    assert philox.uniform(ones, ones, dtype) == 1 - jnp.finfo(dtype).epsneg
    assert 0.49 < philox.centred(jnp.uint32(0x7FFFFFFF), ones, dtype) <= 0.5
    assert -0.5 <= philox.centred(jnp.uint32(0x80000000), zeros, dtype) < -0.49
    assert philox.centred(zeros, zeros, dtype) > 0 > philox.centred(ones, ones, dtype)
    for high in (0, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF):
        for low in (zeros, ones):
            assert abs(philox.normal(jnp.uint32(high), low, dtype)) < 9
            assert 0 < philox.exponential(jnp.uint32(high), low, dtype) < 46


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32, jnp.bfloat16])
def test_below(dtype):
    words = philox.Words(jnp.int64(3), (4000,))
    for p in (0.0, 2.0**-8, 0.5, 1.0):
        of_number, of_array = philox.below(words, p), philox.below(words, jnp.full(4000, p, dtype))
        assert jnp.array_equal(of_number, of_array)
        assert of_number.mean() == pytest.approx(p, abs=0.04)
        assert p not in (0.0, 1.0) or of_number.mean() == p
    assert not philox.below(words, jnp.full(4000, jnp.nan, dtype)).any()
