"""Values in another order than torch's: what they look like, and elementwise functions of them."""

from __future__ import annotations

import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest

from lazy_runtime.lowering import layout
from lazy_runtime.lowering.layout import ChannelsLast, Permuted, Repeated, Transposed, Widened
from lazy_runtime.ops.indexing.shape import select


def array(*sizes):
    return jnp.asarray(np.random.default_rng(0).standard_normal(sizes).astype(np.float32))


def last(x):
    return ChannelsLast(jnp.moveaxis(x, 1, -1))


def same(x, y):
    np.testing.assert_array_equal(np.asarray(layout.logical(x)), np.asarray(y))


SIZES = [(2, 3), (2, 3, 4), (2, 3, 4, 5), (2, 3, 4, 5, 6)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_it_looks_like_the_array_in_torchs_order(sizes):
    x = array(*sizes)
    image = last(x)
    assert (image.shape, image.dtype, image.ndim, image.size) == (x.shape, x.dtype, x.ndim, x.size)
    assert image.physical.shape == (sizes[0], *sizes[2:], sizes[1])
    same(image, x)
    assert layout.physical(image) is image.physical
    same(ChannelsLast(layout.physical(x)), x)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_axis(sizes):
    image = last(array(*sizes))
    for dim in range(-len(sizes), len(sizes)):
        assert image.physical.shape[layout.axis(dim, len(sizes))] == sizes[dim]


def test_logical_of_lists_and_of_what_is_no_array():
    x = array(2, 3, 4)
    converted = layout.logical([last(x), x, None, 3])
    same(converted[0], x)
    assert converted[1] is x
    assert converted[2:] == [None, 3]


@pytest.mark.parametrize("sizes", [(), (4,), (2, 3)], ids=str)
def test_a_part_of_a_flat_array(sizes):
    flat = array(20)
    part = layout.Part(flat, 5, sizes)
    count = math.prod(sizes)
    assert (part.shape, part.dtype, part.ndim, part.size) == (sizes, flat.dtype, len(sizes), count)
    same(part, flat[5 : 5 + count].reshape(sizes))
    assert layout.logical(part, layout.Part) is part


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_elementwise_of_one(sizes):
    x = array(*sizes)
    result = layout.elementwise(lambda x: jnp.sin(x) * 2, last(x))
    assert isinstance(result, ChannelsLast)
    same(result, jnp.sin(x) * 2)


OTHERS = [(), (5,), (1,), (4, 5), (4, 1), (3, 1, 1), (3, 4, 5), (1, 4, 1), (2, 3, 4, 5), (1, 3, 1, 1), (2, 1, 1, 5)]


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_elementwise_with_operands_of_smaller_and_equal_rank(other):
    x, y = array(2, 3, 4, 5), array(*other)
    for result in (
        layout.elementwise(jnp.subtract, last(x), y),
        -layout.elementwise(jnp.subtract, y, last(x)).physical,
    ):
        result = result if isinstance(result, ChannelsLast) else ChannelsLast(result)
        same(result, x - y)


@pytest.mark.parametrize("other", [(1, 1, 1, 1, 1), (6, 2, 3, 4, 5), (2, 1, 3, 1, 1)], ids=str)
def test_elementwise_with_an_operand_of_larger_rank(other):
    x, y = array(2, 3, 4, 5), array(*other)
    same(layout.elementwise(jnp.subtract, last(x), y), x - y)
    same(layout.elementwise(jnp.subtract, y, last(x)), y - x)


@pytest.mark.parametrize("other", [(2, 3, 4, 5), (1, 3, 1, 1), (2, 1, 4, 5), (3, 4, 5), (1, 4, 1), (6, 2, 3, 4, 5)])
def test_elementwise_of_two_channels_last_operands(other):
    x, y = array(2, 3, 4, 5), array(*other)
    same(layout.elementwise(jnp.subtract, last(x), last(y)), x - y)
    same(layout.elementwise(jnp.subtract, last(y), last(x)), y - x)


def test_elementwise_with_numbers_and_keywords():
    x, low, high = array(2, 3, 4, 5), array(3, 1, 1), array(2, 3, 4, 5)

    def function(x, number, nothing, *, low, high):
        assert nothing is None
        return jnp.clip(x, low, high) * number

    expected = function(x, 2.5, None, low=low, high=high)
    for first, lower, upper in itertools.product((x, last(x)), (low,), (high, last(high))):
        same(layout.elementwise(function, first, 2.5, None, low=lower, high=upper), expected)


def test_elementwise_without_channels_last_is_the_function_itself():
    x = array(2, 3, 4)
    result = layout.elementwise(jnp.add, x, 1)
    assert not isinstance(result, ChannelsLast)
    same(result, x + 1)


@pytest.mark.parametrize("dims", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("index", [0, 1, -1])
def test_what_is_taken_of_a_permuted_array(dims, index):
    """Where it lies in the whole is what numpy, by views alone, says too."""
    x = array(2, 3, 4)
    permuted = layout.permute(x, dims)
    for dim in range(3):
        wanted = np.asarray(x).transpose(dims).take(index, dim)
        taken = select(permuted, dim, index)
        same(taken, wanted)
        strided = taken.strided if isinstance(taken, Permuted) else None
        if strided is None:
            continue
        assert strided.physical is x
        memory = np.asarray(x).reshape(-1)[strided.start :]
        strides = [4 * stride for stride in strided.strides]
        np.testing.assert_array_equal(np.lib.stride_tricks.as_strided(memory, strided.shape, strides), wanted)
        turned = layout.permute(taken, (1, 0))
        if isinstance(turned, Permuted):
            assert turned.strided is not None
            assert turned.strided.strides == strided.strides[::-1]


def test_where_something_else_has_come_between_nothing_is_known_of_the_whole():
    permuted = select(layout.permute(array(2, 3, 4), (2, 1, 0)), 1, 0)
    assert permuted.strided is not None
    assert permuted.like(permuted.physical + 1).strided is None
    assert layout.permute(array(2, 3), (1, 0)).strided is None


def test_repeated_heads():
    x = array(2, 3, 1, 5, 4)
    expanded = Repeated.of(x, (2, 3, 6, 5, 4))
    assert expanded is not None
    assert (expanded.shape, expanded.ndim, expanded.size, expanded.dtype) == ((2, 3, 6, 5, 4), 5, 720, x.dtype)
    same(expanded, jnp.broadcast_to(x, expanded.shape))
    heads = expanded.viewed((2, 18, 5, 4))
    assert isinstance(heads, Repeated)
    same(heads, jnp.repeat(x[:, :, 0], 6, axis=1))
    same(expanded.viewed((36, 20)), jnp.broadcast_to(x, expanded.shape).reshape(36, 20))


@pytest.mark.parametrize(
    ("before", "after"), [((2, 3, 1, 5, 4), (2, 3, 6, 7, 4)), ((3, 1, 5, 4), (3, 6, 5, 4))], ids=str
)
def test_other_expansions_repeat_no_heads(before, after):
    assert Repeated.of(array(*before), after) is None


def test_integers_that_are_converted_later():
    x = jnp.arange(-6, 6, dtype=jnp.int8).reshape(3, 4)
    widened = Widened(x, np.dtype(np.float32))
    assert (widened.shape, widened.ndim, widened.dtype) == ((4, 3), 2, np.float32)
    same(widened, x.T.astype(np.float32))
    assert isinstance(widened.converted, Transposed)
    same(widened.converted, x.T.astype(np.float32))
