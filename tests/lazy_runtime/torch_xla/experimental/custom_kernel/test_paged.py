"""Attention over keys in pages, against torch's formula, sequence by sequence."""

from __future__ import annotations

import pytest
import torch

from lazy_runtime.torch_xla.experimental import custom_kernel as kernels

HEADS, KEY_HEADS, WIDTH, PAGE = 4, 2, 8, 3


def attention(q, k, v, window=None, cap=None, scale=1.0):
    """Of [queries, heads, width], the last places of [keys, key heads, width]."""
    k, v = (x.repeat_interleave(HEADS // KEY_HEADS, 1).transpose(0, 1) for x in (k, v))
    logits = q.transpose(0, 1) @ k.transpose(1, 2) * scale
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    places = torch.arange(len(q))[:, None] + k.shape[1] - len(q)
    keys = torch.arange(k.shape[1])
    seen = keys <= places
    if window is not None:
        seen &= keys > places - window
    return (torch.softmax(logits.masked_fill(~seen, -torch.inf), -1) @ v).transpose(0, 1)


def paged():
    torch.manual_seed(0)
    pages = torch.randn(2, KEY_HEADS, 10, PAGE, WIDTH)
    return pages, torch.tensor([7, 2, 9], dtype=torch.int32), torch.randperm(10)[:9].reshape(3, 3).int()


def keys_of(pages, indices, length):
    return [x[:, indices].reshape(KEY_HEADS, -1, WIDTH).transpose(0, 1)[:length] for x in pages]


@pytest.mark.parametrize("cap", [None, 0.7])
def test_one_query(cap):
    pages, lengths, indices = paged()
    q = torch.randn(3, HEADS, WIDTH)
    given = [x.to("xla") for x in (q, *pages, lengths, indices)]
    for function in (kernels.paged_attention, kernels.paged_attention_xla, torch.ops.xla.paged_attention):
        found = function(*given, 1, attn_logits_soft_cap=cap).cpu()
        for number, length in enumerate(lengths.tolist()):
            k, v = keys_of(pages, indices[number], length)
            torch.testing.assert_close(found[number], attention(q[number][None], k, v, cap=cap)[0])
    with pytest.raises(ValueError, match="expected 'kv_head', 'batch' or None, got 'x'"):
        kernels.paged_attention(*given, 1, "x")
    with pytest.raises(ValueError, match="2 does not divide the 3 pages"):
        kernels.paged_attention(*given, 2)


def test_several_queries():
    pages, lengths, indices = paged()
    q, counts = torch.randn(3, 4, HEADS, WIDTH), torch.tensor([4, 2, 3], dtype=torch.int32)
    given = [x.to("xla") for x in (q, *pages, lengths, indices, counts)]
    for function in (kernels.multi_queries_paged_attention, kernels.multi_queries_paged_attention_xla):
        found = function(*given, 1, 1, False, 0.7).cpu()
        for number, (length, count) in enumerate(zip(lengths.tolist(), counts.tolist(), strict=True)):
            k, v = keys_of(pages, indices[number], length)
            torch.testing.assert_close(found[number, :count], attention(q[number, :count], k, v, cap=0.7))
    torch.testing.assert_close(
        torch.ops.xla.multi_queries_paged_attention(*given, 1, 1, False, 0.7).isfinite().all().item(), True
    )
    with pytest.raises(ValueError, match=r"expected \[sequences, queries, heads, width\]"):
        kernels.multi_queries_paged_attention(given[0][0], *given[1:], 1, 1)


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("scales", [(None, None), (0.5, 2.0)])
def test_ragged(window, scales):
    pages, lengths, indices = paged()
    together = torch.stack(list(pages), 3).reshape(
        KEY_HEADS, 10, PAGE, 2, WIDTH
    )  # [key heads, pages, page, k/v, width]
    together = together.permute(1, 2, 0, 3, 4).reshape(10, PAGE, 2 * KEY_HEADS, WIDTH)
    q, starts = torch.randn(8, HEADS, WIDTH), torch.tensor([0, 3, 4, 8], dtype=torch.int32)
    for count in (2, 3):
        numbers = torch.tensor([count], dtype=torch.int32)
        given = [x.to("xla") for x in (q, together, lengths, indices, starts, numbers)]
        found = kernels.ragged_paged_attention(
            *given, sm_scale=0.3, sliding_window=window, soft_cap=5.0, k_scale=scales[0], v_scale=scales[1]
        ).cpu()
        for number in range(count):
            k, v = keys_of(pages, indices[number], int(lengths[number]))
            rows = slice(int(starts[number]), int(starts[number + 1]))
            expected = attention(q[rows], k * (scales[0] or 1), v * (scales[1] or 1), window, 5.0, 0.3)
            torch.testing.assert_close(found[rows], expected)
        assert count == 3 or not found[4:].any()
        for function in (kernels.ragged_paged_attention_xla, torch.ops.xla.ragged_paged_attention):
            again = function(*given, 0.3, window, 5.0, None, *scales)
            assert torch.equal(again.cpu(), found)
