"""`flash_attention`, against torch's formula on the CPU."""

from __future__ import annotations

import pytest
import torch

from lazy_runtime.torch_xla.experimental.assume_pure import assume_pure
from lazy_runtime.torch_xla.experimental.custom_kernel import (
    DEFAULT_MASK_VALUE,
    FlashAttention,
    fa_custom_backward,
    fa_custom_forward,
    flash_attention,
    flash_attention_xla,
)


def formula(q, k, v, causal, segments, scale, ab):
    logits = (q @ k.transpose(-2, -1) + (0 if ab is None else ab)) * scale
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
    if causal:
        seen = seen.tril()
    if segments is not None:
        seen = seen & (segments[0][:, None, :, None] == segments[1][:, None, None, :])
    return torch.softmax(logits.masked_fill(~seen, DEFAULT_MASK_VALUE), -1) @ v


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("with_segments", [False, True])
@pytest.mark.parametrize("with_ab", [False, True])
def test_values_and_gradients(causal, with_segments, with_ab):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, length, 4) for length in (5, 6, 6))
    segments = (torch.tensor([[0, 0, 1, 1, 1]] * 2), torch.tensor([[0, 0, 1, 1, 1, 2]] * 2)) if with_segments else None
    ab = torch.randn(2, 3, 5, 6) if with_ab else None
    plain = [None if x is None else x.clone().requires_grad_() for x in (q, k, v, ab)]
    mine = [None if x is None else x.to("xla").requires_grad_() for x in (q, k, v, ab)]
    ids = (None, None) if segments is None else tuple(each.to("xla") for each in segments)
    found = flash_attention(*mine[:3], causal, *ids, 0.5, ab=mine[3])
    expected = formula(*plain[:3], causal, segments, 0.5, plain[3])
    torch.testing.assert_close(found.cpu(), expected)
    gradient = torch.randn(2, 3, 5, 4)
    found.backward(gradient.to("xla"))
    expected.backward(gradient)
    for x, other in zip(mine, plain, strict=True):
        if x is not None:
            torch.testing.assert_close(x.grad.cpu(), other.grad, rtol=1e-4, atol=1e-5)


def test_narrow_dtypes_and_another_dimension():
    q, k, v = (torch.randn(2, 2, 3, 4, 8, dtype=torch.bfloat16) for _ in range(3))
    mine = [x.to("xla") for x in (q, k, v)]
    expected = formula(q.float(), k.float(), v.float(), True, None, 1.0, None)
    for found in (
        flash_attention(*mine, True),
        torch.ops.xla.flash_attention(*mine, True),
        flash_attention_xla(*mine, True),
    ):
        assert found.dtype is torch.bfloat16
        torch.testing.assert_close(found.float().cpu(), expected, rtol=2e-2, atol=2e-2)  # of bfloat16's 8 bits


def test_within_a_trace_and_compiled():
    q = torch.randn(1, 2, 4, 8)
    mine, other = q.to("xla").requires_grad_(), q.clone().requires_grad_()
    assume_pure(lambda q: flash_attention(q, q, q, True))(mine).sum().backward()
    formula(other, other, other, True, None, 1.0, None).sum().backward()
    torch.testing.assert_close(mine.grad.cpu(), other.grad, rtol=1e-4, atol=1e-5)
    compiled = torch.compile(lambda q: torch.ops.xla.flash_attention(q, q, q, True), backend="openxla")
    with torch.no_grad():
        torch.testing.assert_close(compiled(q.to("xla")).cpu(), formula(q, q, q, True, None, 1.0, None))


def test_parts():
    q = torch.randn(1, 1, 3, 4, device="xla")
    o, total, m, *whole = fa_custom_forward(q, q, q, False, None, None, 1.0, None, None, None, [True] * 3)
    logits = q @ q.transpose(-2, -1)
    torch.testing.assert_close(m.cpu(), logits.amax(-1).cpu())
    torch.testing.assert_close((m + total.log()).cpu(), logits.logsumexp(-1).cpu())
    assert len(whole) == 4
    shapes = [1, 1, 3, 4], [1, 1, 3, 4], None
    found = fa_custom_backward(
        o, q, q, q, o, total, m, None, None, None, False, 1.0, None, None, *shapes, [True, False, False, False]
    )
    assert [each is None for each in found] == [False, True, True, True]
    assert fa_custom_forward(q, q, q, False, None, None, 1.0, None, None, None, [False])[1] is None


def test_refusals():
    q = torch.ones(1, 1, 2, 2, device="xla")
    with pytest.raises(ValueError, match="pass q_segment_ids and kv_segment_ids both"):
        flash_attention(q, q, q, False, torch.zeros(1, 2, device="xla"))
    assert FlashAttention.prepare_segment_ids(None, None) == (None, None, None)
    with pytest.raises(ValueError, match="partition_spec needs a mesh"):
        flash_attention(q, q, q, partition_spec=("x", None, None, None))
