"""Linear layers by einsum."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lazy_runtime.torch_xla.distributed import spmd as xs


@pytest.mark.parametrize("bias", [False, True])
def test_values_and_gradients(bias):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 4, bias=bias), nn.Sequential(nn.Linear(4, 2, bias=bias)))
    patched = copy.deepcopy(plain).to("xla")
    before = list(patched.parameters())
    assert xs.apply_xla_patch_to_nn_linear(patched) is patched
    assert all(type(each) is xs.EinsumLinear for each in (patched[0], patched[1][0]))
    assert all(x is y for x, y in zip(before, patched.parameters(), strict=True))
    x = torch.randn(2, 5, 3)
    mine, other = x.to("xla").requires_grad_(), x.clone().requires_grad_()
    patched(mine).pow(2).sum().backward()
    plain(other).pow(2).sum().backward()
    torch.testing.assert_close(mine.grad.cpu(), other.grad, rtol=1e-4, atol=1e-5)
    for each, torchs in zip(patched.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(each.grad.cpu(), torchs.grad, rtol=1e-4, atol=1e-5)
    one = torch.randn(3)
    found = xs.xla_patched_nn_linear_forward(patched[0], one.to("xla"))
    torch.testing.assert_close(found.cpu(), plain[0](one))


def test_autocast_and_the_cpu():
    layer = xs.EinsumLinear(3, 2).to("xla")
    with torch.autocast("xla", torch.bfloat16):
        found = layer(torch.ones(1, 3, device="xla"))
    assert found.dtype is torch.bfloat16
    found.float().sum().backward()
    assert layer.weight.grad.dtype is torch.float32
    assert xs.EinsumLinear(3, 2)(torch.ones(3)).shape == (2,)
    assert xs.XLAPatchedLinear.apply(torch.ones(1, 3, device="xla"), layer.weight).shape == (1, 2)
