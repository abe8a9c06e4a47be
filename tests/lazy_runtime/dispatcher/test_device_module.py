"""`torch.xla`, and what in torch goes through it."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import lazy_runtime
from lazy_runtime.common import metrics


def test_module():
    assert torch.get_device_module("xla") is torch.xla
    assert torch.xla.is_available()
    assert torch.xla.is_initialized()
    assert torch.xla.device_count() == lazy_runtime.device_count() == len(lazy_runtime.devices())
    assert torch.xla.current_device() == 0
    with torch.xla.device(0):
        assert torch.xla.current_device() == 0
    with pytest.raises(RuntimeError, match="xla:9 does not exist"):
        torch.xla.set_device(9)
    with pytest.raises(AttributeError, match="no attribute 'Stream9'"):
        torch.xla.Stream9  # noqa: B018


def test_synchronize_runs_what_is_pending():
    x = torch.ones(3, device="xla") + 1
    torch.xla.synchronize()
    torch.xla.synchronize("xla:0")
    metrics.clear()
    assert x.tolist() == [2, 2, 2]
    assert metrics.value("ExecuteComputation") == 0


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("own_stream", [False, True])
def test_checkpoint_draws_the_same_dropout_again(use_reentrant, own_stream):
    if own_stream:
        torch.xla.manual_seed_all(3)
    x = torch.ones(1000, device="xla", requires_grad=True)
    y = checkpoint(lambda x: torch.nn.functional.dropout(x, 0.5) * 3, x, use_reentrant=use_reentrant)
    y.sum().backward()
    assert torch.equal(y.detach(), x.grad)
    assert 300 < int((y == 0).sum()) < 700


def test_manual_seed():
    torch.xla.manual_seed(4)
    first = torch.rand(3, device="xla").cpu()
    torch.xla.manual_seed(4)
    assert torch.equal(first, torch.rand(3, device="xla").cpu())
