"""`splash_attention`, against torch's formula on the CPU."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from lazy_runtime.torch_xla.experimental.splash_attention import (
    SplashAttention,
    SplashAttentionConfig,
    sa_custom_backward,
    sa_custom_forward,
    splash_attention,
    splash_attention_jax_wrapper,
    tpu_splash_attention_jax_call_wrapper,
)


def formula(q, k, v, ids, causal, window, cap):
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    logits = q @ k.transpose(-2, -1)
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    places = torch.arange(q.shape[2])
    seen = places <= places[:, None] if causal else torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    if window is not None:
        seen = seen & ((places - places[:, None]).abs() <= window)
    if ids is not None:
        seen = seen & (ids[:, None, :, None] == ids[:, None, None, :])
    return torch.softmax(logits.masked_fill(~seen, -torch.inf), -1) @ v


@pytest.mark.parametrize(("causal", "window", "cap"), [(True, None, None), (False, 1, 0.5), (True, 2, None)])
@pytest.mark.parametrize("with_segments", [False, True])
def test_values_and_gradients(causal, window, cap, with_segments):
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    ids = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 0, 0, 2]]) if with_segments else None
    config = SplashAttentionConfig(attentiontype_local_sliding=window is not None, slide_window_size=window).to_json()
    mine, plain = [x.to("xla").requires_grad_() for x in (q, k, v)], [x.clone().requires_grad_() for x in (q, k, v)]
    on_xla = None if ids is None else ids.to("xla")
    found, expected = splash_attention(*mine, config, on_xla, causal, cap), formula(*plain, ids, causal, window, cap)
    torch.testing.assert_close(found.cpu(), expected)
    gradient = torch.randn(2, 4, 5, 8)
    found.backward(gradient.to("xla"))
    expected.backward(gradient)
    for x, other in zip(mine, plain, strict=True):
        torch.testing.assert_close(x.grad.cpu(), other.grad, rtol=1e-4, atol=1e-5)
    detached = [x.detach() for x in mine]
    again = sa_custom_backward(gradient.to("xla"), *detached, config, on_xla, causal, cap)
    assert torch.equal(again[0].cpu(), mine[0].grad.cpu())
    assert sa_custom_forward(*detached, config, on_xla, causal, cap)[1:] == (None, None)


def test_configurations():
    config = SplashAttentionConfig(mesh="m", sa_block_q=128)
    assert SplashAttentionConfig.from_json(config.to_json()) == config
    wrong = dataclasses.replace(config, mesh=None, attentiontype_local_sliding=True)
    x = torch.ones(1, 1, 2, 2, device="xla")
    with pytest.raises(ValueError, match="needs slide_window_size"):
        splash_attention(x, x, x, wrong.to_json())


def test_the_layers_below():
    torch.manual_seed(0)
    q, k, v, gradient = (
        torch.randn(1, 4, 5, 8),
        torch.randn(1, 2, 5, 8),
        torch.randn(1, 2, 5, 8),
        torch.randn(1, 4, 5, 8),
    )
    ids = torch.tensor([[0, 0, 1, 1, 1]])
    config = SplashAttentionConfig(mesh=None)
    plain = [x.clone().requires_grad_() for x in (q, k, v)]
    expected = formula(*plain, ids, True, None, 2.0)
    expected.backward(gradient)
    arrays = [jnp.asarray(x.numpy()) for x in (q, k, v, ids)]
    found = splash_attention_jax_wrapper(*arrays, True, config, 2.0)
    torch.testing.assert_close(torch.from_numpy(np.array(found)), expected.detach())
    mine = [x.to("xla") for x in (q, k, v)]
    on_xla = ids.to("xla")
    made, *nothing = tpu_splash_attention_jax_call_wrapper(*mine, config, on_xla, True, 2.0)
    torch.testing.assert_close(made.cpu(), expected.detach())
    assert nothing == [None, None]
    gradients = tpu_splash_attention_jax_call_wrapper(
        *mine, config, on_xla, True, 2.0, is_forward=False, grad_output=gradient.to("xla")
    )
    for each, x in zip(gradients, plain, strict=True):
        torch.testing.assert_close(each.cpu(), x.grad, rtol=1e-4, atol=1e-5)
    leaves = [x.requires_grad_() for x in mine]
    applied = SplashAttention.apply(*leaves, config.to_json(), on_xla, True, 2.0)
    applied.backward(gradient.to("xla"))
    for each, x in zip(leaves, plain, strict=True):
        torch.testing.assert_close(each.grad.cpu(), x.grad, rtol=1e-4, atol=1e-5)
    assert on_xla.grad is None
