"""What FSDP is used with."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lazy_runtime.torch_xla.core import xla_model as xm
from lazy_runtime.torch_xla.distributed.fsdp import utils


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.calls = 0

    def forward(self, x, *, factor):
        self.calls += 1
        return self.layer(x).tanh() * factor


def test_checkpointed_modules():
    plain = Counting().to("xla")
    module = utils.checkpoint_module(copy.deepcopy(plain))
    given = torch.randn(2, 3)
    for each in (plain, module):
        x = given.to("xla").requires_grad_()
        each(x, factor=2.0).sum().backward()
        each.gradient = x.grad
    assert (plain.calls, module.calls) == (1, 2)
    torch.testing.assert_close(module.gradient.cpu(), plain.gradient.cpu())
    module(given.to("xla"), factor=2.0).sum().backward()  # no input wants a gradient
    assert module.calls == 3
    assert utils.unwrap_checkpoint(module)
    assert not utils.unwrap_checkpoint(module)
    assert "forward" not in vars(module)
    with pytest.raises(TypeError, match="expected a module, got int"):
        utils.checkpoint_module(1)


def test_linear_layers():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, bias=False))
    patched = utils.apply_xla_patch_to_nn_linear(copy.deepcopy(plain).to("xla"))
    x = torch.randn(2, 5, 3)
    mine, other = x.to("xla").requires_grad_(), x.clone().requires_grad_()
    found, expected = patched(mine), plain(other)
    assert "XLAPatchedLinear" in type(found.grad_fn).__name__
    found.pow(2).sum().backward()
    expected.pow(2).sum().backward()
    torch.testing.assert_close(mine.grad.cpu(), other.grad, rtol=1e-4, atol=1e-5)
    for each, torchs in zip(patched.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(each.grad.cpu(), torchs.grad, rtol=1e-4, atol=1e-5)


def in_ranks():
    rank = xm.get_ordinal()
    bucket, seen = utils.BucketizedReduceScatter(1, 2), []
    bucket.scale = 0.5
    for size in (4, 2):
        bucket(torch.full((size,), float(rank + 1), device="xla"), seen.append)
    early = len(seen)
    bucket.flush()
    bucket.flush()
    each = utils.BucketizedReduceScatter(0, 2)
    each(torch.ones(2, device="xla"), seen.append)
    dummy = utils.DummyReduceScatter(2)
    dummy(torch.arange(4.0, device="xla"), seen.append)
    dummy.flush()
    gathered = utils.dummy_all_gather(torch.full((1, 2), float(rank), device="xla"), dim=1)
    reduced = utils.dummy_all_reduce(xm.REDUCE_SUM, torch.ones(1, device="xla"), 3.0)
    (written,) = utils.dummy_all_reduce(xm.REDUCE_SUM, [torch.ones(1, device="xla")], 2.0)
    return early, [x.tolist() for x in (*seen, gathered[0], reduced, written)]


def test_collectives(ranks):
    for rank, (early, found) in enumerate(ranks(2)(in_ranks)):
        assert early == 0
        assert found == [[1.5, 1.5], [1.5], [2.0], [[0.0, 1.0], [2.0, 3.0]][rank], [float(rank)] * 4, [3.0], [2.0]]
