"""Rearrangements of values whose memory is in another order than torch's dimensions."""

from __future__ import annotations

import random
import re

import pytest
import torch
import torch.nn.functional as F

import lazy_runtime
from lazy_runtime.compilation import compiler
from tests.lazy_runtime.ops.comparison import check, fresh, rand


def _rearranged(x: torch.Tensor, pick: random.Random, steps: int = 6) -> torch.Tensor:
    """Some way through the operators that keep an order, and some that do not; nothing is computed."""
    for _ in range(steps):
        if x.ndim == 0:
            break
        dims = list(range(x.ndim))
        dim, other = pick.choice(dims), pick.choice(dims)
        match pick.randrange(9):
            case 0:
                x = x.permute(pick.sample(dims, x.ndim))
            case 1:
                x = x.transpose(dim, other)
            case 2:
                x = x.select(dim - x.ndim, pick.randrange(x.shape[dim])) if x.ndim > 2 else x
            case 3:
                x = x.unbind(dim)[-1] if x.ndim > 2 else x
            case 4:
                x = torch.stack([x, x.flip(dim)], pick.choice([0, dim, -1])) if x.ndim < 5 else x
            case 5:
                x = x.narrow(dim, 0, max(1, x.shape[dim] - 1))
            case 6:
                x = x[(slice(None),) * dim + (slice(None, None, 2),)]
            case 7:
                x = torch.cat(x.split(max(1, x.shape[dim] // 2), dim)[::-1], dim)
            case _:
                x = x.flatten(2) if x.ndim > 3 else x.unflatten(-1, (1, -1)) if x.ndim == 3 else x.contiguous()
    return x


@pytest.mark.parametrize("seed", range(40))
def test_rearrangements_of_images_and_of_heads(seed):
    """A convolution's result has its channels last, that of attention its heads."""

    def function(images, filters, query):
        first = _rearranged(F.conv2d(images, filters), random.Random(seed))
        second = _rearranged(F.scaled_dot_product_attention(query, query, query), random.Random(seed + 1))
        return first, second

    check(function, rand(2, 3, 6, 5), rand(4, 3, 3, 2), rand(2, 3, 4, 5))


def test_gradients_of_three_heads_are_stacked():
    """In each dimension, and so that they need not be moved for one projection of all."""

    def function(packed, dim):
        heads = packed.movedim(2, 0).movedim(3, 2).movedim(0, dim).unbind(dim)
        return F.scaled_dot_product_attention(*heads)

    for dim in range(-5, 5):
        check(function, rand(2, 5, 3, 4, 6), dim)


def test_a_packed_projection_is_not_copied_whole():
    """Of queries, keys and values in one, as a vision transformer has it (timm's `Attention`)."""
    compiler.clear()

    def attention(x, weight):
        packed = F.linear(x, weight).reshape(2, 40, 3, 4, 8).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(*packed.unbind(0)).transpose(1, 2).reshape(2, 40, 32)

    x, weight = fresh([rand(2, 40, 32), rand(96, 32)], "xla")
    attention(x, weight).sum().backward()
    lazy_runtime.sync()
    text = max((each.compiled.as_text() or "" for each in compiler._executables.values()), key=len)
    assert "flash_attention_for_cpu_backward" in text
    sizes = [
        torch.Size(map(int, dims.split(","))).numel()
        for dims in re.findall(r"= f32\[([\d,]+)\]\S* (?:copy|transpose)\(", text)
    ]
    assert all(size < 2 * 40 * 96 for size in sizes), sizes
