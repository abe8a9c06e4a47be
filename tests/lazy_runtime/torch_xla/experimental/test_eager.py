"""Eager mode."""

from __future__ import annotations

import torch

from lazy_runtime.common import metrics
from lazy_runtime.torch_xla import experimental


def test_every_operator_runs_at_once():
    x = torch.ones(3, device="xla")
    pending = x + 5
    experimental.eager_mode(True)
    assert experimental.is_eager_mode()
    metrics.clear()
    y = (x + 1) * 2
    assert metrics.value("ExecuteComputation") == 2
    assert y.tolist() == [4, 4, 4]
    assert pending.tolist() == [6, 6, 6]
    metrics.clear()
    (x + 1) * 2
    assert metrics.value("CachedCompile") == 2
    experimental.eager_mode(False)
    metrics.clear()
    assert not experimental.is_eager_mode()
    x = x * 2
    assert metrics.value("ExecuteComputation") == 0


def test_context():
    with experimental.eager_mode_context(True):
        assert experimental.is_eager_mode()
        with experimental.eager_mode_context(False) as outer:
            assert outer is True
            assert not experimental.is_eager_mode()
        assert experimental.is_eager_mode()
    assert not experimental.is_eager_mode()


def test_training_eagerly():
    grads = []
    for device in ("cpu", "xla"):
        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 2).to(device)
        with experimental.eager_mode_context(True):
            layer(torch.ones(2, 3, device=device)).exp().sum().backward()
        grads.append(layer.weight.grad.cpu())
    torch.testing.assert_close(grads[1], grads[0])
