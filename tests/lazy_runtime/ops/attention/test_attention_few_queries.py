"""Our kernel for attention of a few queries, by itself against the definition in float64, and where it is taken."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

import lazy_runtime
from lazy_runtime.debug import graphs
from lazy_runtime.ops import kernels
from lazy_runtime.ops.attention import attention_few_queries
from lazy_runtime.ops.attention.attention_problem import AttentionProblem
from tests import native_part

pytestmark = native_part.need_kernel(attention_few_queries._is_built, expected=True)

#: Of the largest result, which is rounded to bfloat16.
TOLERANCES = {torch.float32: 3e-6, torch.bfloat16: 6e-3}
DTYPES = list(TOLERANCES)


def kernel(*args):
    return torch.ops.lazy_runtime_kernels.few_queries_attention(*args)


def definition(query, key, value, mask, causal, scale):
    """Attention and the logarithms of sums; where all keys are masked both are 0, as torch's kernel has it."""
    key, value = (x.double().repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = query.double() @ key.mT * scale
    if mask is not None:
        scores = scores + mask.double()
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).tril() == 0, -math.inf)
    logsumexp = scores.logsumexp(-1)
    gone = logsumexp.isneginf()
    weights = scores.softmax(-1).masked_fill(gone[..., None], 0)
    return weights @ value, logsumexp.masked_fill(gone, 0)


def check(query, key, value, mask=None, causal=False, scale=0.2):
    found, sums = kernel(query, key, value, mask, causal, scale)
    expected, expected_sums = definition(query, key, value, mask, causal, scale)
    assert found.dtype == query.dtype
    assert (found.double() - expected).abs().max() <= TOLERANCES[query.dtype] * expected.abs().max()
    torch.testing.assert_close(sums.double(), expected_sums, rtol=1e-5, atol=1e-4)


def random(*sizes, dtype=torch.float32):
    return torch.randn(sizes).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "shared"), [(4, 4), (6, 2), (5, 1)])
@pytest.mark.parametrize("queries", [1, 2, 5])
@pytest.mark.parametrize(("keys", "features"), [(1, 16), (17, 48), (700, 80), (1100, 128)])
def test_kernel(dtype, heads, shared, queries, keys, features):
    query = random(2, heads, queries, features, dtype=dtype)
    check(query, *(random(2, shared, keys, features, dtype=dtype) for _ in range(2)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [(2, 1, 1, 600), (1, 4, 3, 600), (2, 4, 3, 1), (1, 1, 3, 600)], ids=str)
def test_masks(dtype, size):
    mask = random(*size).where(torch.rand(size) > 0.4, -math.inf)
    query, *pair = (random(2, heads, rows, 32, dtype=dtype) for heads, rows in ((4, 3), (2, 600), (2, 600)))
    check(query, *pair, mask)
    check(query, *pair, mask.bfloat16())


@pytest.mark.parametrize("keys", [3, 40])
def test_causal(keys):
    check(random(1, 2, 5, 16), random(1, 2, keys, 16), random(1, 2, keys, 16), causal=True)


def test_rows_whose_keys_are_all_masked_give_0():
    mask = torch.zeros(1, 1, 2, 9)
    mask[..., 1, :] = -math.inf
    check(random(1, 2, 2, 16), random(1, 1, 9, 16), random(1, 1, 9, 16), mask)


@pytest.mark.parametrize("place", [0, 2])
def test_what_is_not_a_number_stays_so(place):
    query, key, value = random(1, 1, 1, 16), random(1, 1, 9, 16), random(1, 1, 9, 16)
    (query, key, value)[place][..., 0, 3] = math.nan
    found, _ = kernel(query, key, value, None, False, 0.2)
    expected, _ = definition(query, key, value, None, False, 0.2)
    torch.testing.assert_close(found.double(), expected, equal_nan=True, rtol=1e-5, atol=1e-5)


def test_heads_that_lie_in_other_orders():
    query = random(2, 3, 4, 32).transpose(1, 2)
    pair = [random(2, 50, 2, 64).transpose(1, 2)[..., 32:], random(2, 2, 32, 50).mT]
    check(query, *pair)


def test_kernel_refuses():
    query = random(1, 3, 1, 16)
    for key in (random(1, 2, 5, 16), random(2, 3, 5, 16), random(1, 3, 5, 32), random(1, 3, 0, 16)):
        with pytest.raises(RuntimeError, match="attention of queries"):
            kernel(query, key, key, None, False, 1.0)
    key = random(1, 3, 5, 16)
    with pytest.raises(RuntimeError, match="a mask of"):
        kernel(query, key, key, torch.zeros(1, 1, 1, 5, dtype=torch.float64), False, 1.0)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, ""),
        ({"query": (1, 4, 9, 16)}, "9 queries"),
        ({"dtype": "float64"}, "float64"),
        ({"query": (1, 4, 1, 20), "key": (1, 2, 5, 20), "value": (1, 2, 5, 20)}, "20 features"),
        ({"mask": "float64"}, "mask of float64"),
        ({"key": (1, 2, 0, 16), "value": (1, 2, 0, 16)}, "no keys"),
        ({"has_dropout": True}, "dropout"),
    ],
)
def test_when_it_is_taken(changed, reason):
    problem = AttentionProblem((1, 4, 1, 16), (1, 2, 5, 16), (1, 2, 5, 16), "float32", "cpu")._replace(**changed)
    verdict = attention_few_queries.accepts(problem)
    assert bool(verdict) == (not reason)
    assert reason in str(verdict)


def decode(query, cache_key, cache_value, mask):
    """As transformers' `repeat_kv` and `sdpa_attention_forward` have it."""
    batch, shared, length, features = cache_key.shape
    times = query.shape[1] // shared
    pair = (
        x[:, :, None].expand(batch, shared, times, length, features).reshape(batch, shared * times, length, features)
        for x in (cache_key, cache_value)
    )
    return F.scaled_dot_product_attention(query, *pair, attn_mask=mask)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_heads_are_not_repeated_for_it(is_compiled):
    query, *caches = random(2, 6, 1, 16), random(2, 2, 40, 16), random(2, 2, 40, 16)
    mask = (torch.arange(40) < 30).expand(1, 40)
    expected = decode(query, *caches, mask)
    call = torch.compile(decode, backend="openxla") if is_compiled else decode
    kernels.clear()
    with torch.no_grad():
        found = call(query.to("xla"), *(x.to("xla") for x in caches), mask.to("xla"))
    if not is_compiled:
        assert "x6x40x16x" not in graphs.stablehlo([found])
    lazy_runtime.sync()
    torch.testing.assert_close(found.cpu(), expected)
    choices = {(each.kernel, str(each.problem)) for each in kernels.choices() if each.kind == "attention"}
    ((name, problem),) = choices
    assert name == "few queries"
    assert "keys 2x2x40x16" in problem


def test_gradients_of_repeated_heads():
    given = random(1, 4, 1, 16), random(1, 2, 9, 16), random(1, 2, 9, 16)

    def gradients(device):
        leaves = [x.to(device).requires_grad_() for x in given]
        return torch.autograd.grad(decode(*leaves, None).square().sum(), leaves)

    for found, expected in zip(gradients("xla"), gradients("cpu"), strict=True):
        torch.testing.assert_close(found.cpu(), expected)
