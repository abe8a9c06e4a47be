"""When attention is torch's own kernel for the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from lazy_runtime.common import metrics
from tests.lazy_runtime.ops.comparison import check, close, rand

OURS = "xla::lazy_runtime::attention"

attention = F.scaled_dot_product_attention


def qkv(queries=5, keys=7, values=8):
    return [rand(2, 3, *sizes) for sizes in ((queries, 8), (keys, 8), (keys, values))]


def test_few_scores_are_one_operator():
    check(attention, *qkv())
    assert metrics.counters[OURS] == 1


def test_its_numbers_are_those_of_torch():
    """To the last bit: it is the same code."""
    query, key, value = qkv()
    result = attention(*(x.detach().to("xla") for x in (query, key, value)))
    assert torch.equal(result.cpu(), attention(query, key, value))


@pytest.mark.parametrize(
    "function",
    [
        lambda q, k, v: attention(q, k, v, dropout_p=1.0),
        lambda q, k, v: attention(q, k, v[..., :5]),
        lambda q, k, v: attention(q[0], k[0], v[0]),
        lambda q, k, v: attention(q, k, v, q[..., :7]),
    ],
    ids=["dropout", "values of another width", "three dimensions", "a mask with a gradient"],
)
def test_what_is_composed(function):
    check(function, *qkv())
    assert OURS not in metrics.counters


def test_the_user_may_ask_for_the_composition():
    with sdpa_kernel(SDPBackend.MATH):
        check(attention, *qkv())
    assert OURS not in metrics.counters


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("heads", [3, 1])
def test_second_derivatives(heads, is_causal):
    """Which torch's own kernel does not have."""

    def second(query, key, value):
        attended = attention(query, key, value, is_causal=is_causal, enable_gqa=heads == 1)
        grads = torch.autograd.grad(attended.square().sum(), [query, key, value], create_graph=True)
        return torch.autograd.grad(sum(grad.square().sum() for grad in grads), [query, key, value])

    tensors = [rand(2, 3, 5, 8), rand(2, heads, 7, 8), rand(2, heads, 7, 8)]
    with sdpa_kernel(SDPBackend.MATH):
        expected = second(*tensors)
    found = second(*(x.detach().to("xla").requires_grad_() for x in tensors))
    assert metrics.counters[OURS] == 1
    for x, y in zip(found, expected, strict=True):
        close(x, y)


def test_second_derivatives_where_a_mask_is_added():
    mask = torch.randn(5, 7)

    def second(query, mask):
        attended = attention(query, query[:, :, :5], query[:, :, :5], mask[:, :5])
        (grad,) = torch.autograd.grad(attended.square().sum(), query, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), query)[0]

    query = rand(2, 3, 5, 8)
    with sdpa_kernel(SDPBackend.MATH):
        expected = second(query, mask)
    close(second(query.detach().to("xla").requires_grad_(), mask.to("xla")), expected)
