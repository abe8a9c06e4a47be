"""Our kernel for attention, by itself against the definition in float64."""

from __future__ import annotations

import functools
import math

import pytest
import torch

from lazy_runtime.ops.attention import attention_native
from lazy_runtime.ops.attention.attention_problem import AttentionProblem
from tests import native_part

native_part.need_bridge()  # which registers the kernel
kernel = torch.ops.lazy_runtime_kernels.attention

#: Of the largest result: products of float32, and of weights rounded to bfloat16.
TOLERANCES = {torch.float32: 3e-6, torch.bfloat16: 6e-3}

_FLOAT32 = native_part.need_kernel(functools.partial(attention_native._works, "float32"))
_BFLOAT16 = native_part.need_kernel(
    functools.partial(attention_native._works, "bfloat16"),
    expected=native_part.HAS_VECTORS and torch.cpu._is_avx512_bf16_supported(),
)

pytestmark = pytest.mark.parametrize(
    "dtype",
    [pytest.param(torch.float32, marks=_FLOAT32), pytest.param(torch.bfloat16, marks=_BFLOAT16)],
    ids=str,
)


def heads(batch: int, number: int, rows: int, features: int, dtype: torch.dtype) -> torch.Tensor:
    """As a projection leaves them: a head's rows are not side by side."""
    return torch.randn(batch, rows, number, features).to(dtype).transpose(1, 2)


def definition(query, key, value, mask, causal, scale):
    scores = query.double() @ key.double().mT * scale
    if mask is not None:
        scores = scores + mask.double()
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    masked = scores.amax(-1) == -math.inf
    attended = torch.softmax(scores, -1).masked_fill(masked[..., None], 0) @ value.double()
    logsumexp = torch.logsumexp(scores, -1).masked_fill(masked, 0)
    return attended, logsumexp.masked_fill(logsumexp == math.inf, math.nan)  # of such a row nothing is known


def compare(query, key, value, mask=None, causal=False, scale=0.3):
    attended, logsumexp = kernel(query, key, value, mask, causal, scale)
    wanted, wanted_logsumexp = definition(query, key, value, mask, causal, scale)
    assert (attended.dtype, logsumexp.dtype) == (query.dtype, torch.float32)
    atol = TOLERANCES[query.dtype] * wanted.nan_to_num(0).abs().max().item()
    torch.testing.assert_close(attended.double(), wanted, rtol=0, atol=atol, equal_nan=True)
    torch.testing.assert_close(logsumexp.double(), wanted_logsumexp, rtol=1e-6, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("queries", "keys", "features"),
    [(1, 1, 16), (5, 7, 16), (64, 64, 64), (65, 63, 32), (197, 197, 64), (3, 513, 64), (600, 1100, 80), (70, 20, 144)],
)
def test_sizes(queries, keys, features, causal, dtype):
    query = heads(2, 3, queries, features, dtype)
    compare(query, heads(2, 3, keys, features, dtype), heads(2, 3, keys, features, dtype), causal=causal)


@pytest.mark.parametrize("mask_dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (2, 1, 1, 700), (2, 3, 90, 700), (1, 3, 90, 1), (2, 1, 90, 700)])
def test_masks(sizes, mask_dtype, dtype):
    query, key, value = heads(2, 3, 90, 32, dtype), heads(2, 3, 700, 32, dtype), heads(2, 3, 700, 32, dtype)
    mask = torch.randn(sizes).to(mask_dtype)
    compare(query, key, value, mask)
    compare(query, key, value, mask.mT.contiguous().mT)


def test_masked_rows_and_blocks_of_keys(dtype):
    query, key, value = (heads(1, 2, 1100, 32, dtype) for _ in range(3))
    mask = torch.zeros(1100, 1100)[None, None]
    mask[..., 0, :] = -math.inf  # all of a row
    mask[..., 1, :600] = -math.inf  # the first block of keys
    mask[..., 2, 600:] = -math.inf  # the last ones
    mask[..., 3, 1:] = -math.inf
    compare(query, key, value, mask)


def test_large_scores_and_negative_scales(dtype):
    query, key, value = (heads(1, 2, 80, 64, dtype) for _ in range(3))
    compare(query, key, value, scale=-0.3)
    attended, logsumexp = kernel(query * 64, key * 64, value, None, False, 0.3)
    assert attended.isfinite().all()
    assert logsumexp.isfinite().all()


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["query", "key", "value", "mask"])
def test_what_is_not_finite_stays_where_it_belongs(where, number, dtype):
    tensors = {
        "query": heads(1, 2, 70, 16, dtype),
        "key": heads(1, 2, 600, 16, dtype),
        "value": heads(1, 2, 600, 16, dtype),
        "mask": torch.randn(1, 2, 70, 600),
    }
    tensors[where][0, 1, 11, 13] = number
    compare(*tensors.values())


def test_heads_that_lie_in_other_ways(dtype):
    whole = torch.randn(2, 50, 3, 3, 32).to(dtype)
    compare(*whole.permute(2, 0, 3, 1, 4).unbind(0))
    query, key, value = (torch.randn(2, 3, 32, 50).to(dtype).mT for _ in range(3))
    compare(query, key, value)
    compare(query[:, :1].expand(2, 3, 50, 32), key, value)


def test_other_shapes_are_refused(dtype):
    query = heads(1, 2, 4, 24, dtype)
    with pytest.raises(RuntimeError, match=r"attention of queries \[1, 2, 4, 24\]"):
        kernel(query, query, query, None, False, 1.0)


def test_few_queries_of_many_keys_are_left_to_torch(dtype):
    def accepts(queries, keys):
        sizes = (1, 1, queries, 16), (1, 1, keys, 16), (1, 1, keys, 16)
        return attention_native.accepts(AttentionProblem(*sizes, str(dtype).removeprefix("torch."), "cpu"))

    assert accepts(6, 6)
    assert accepts(64, 5000)
    assert not accepts(63, 5000)
    assert not accepts(1, 2)
