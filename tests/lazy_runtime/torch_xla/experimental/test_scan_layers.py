"""`experimental.scan_layers`, against the layers one after the other."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch import nn

from lazy_runtime.torch_xla.experimental import scan_layers as module
from lazy_runtime.torch_xla.experimental.scan_layers import scan_layers


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("shift", torch.randn(4))

    def forward(self, x, y):
        return self.linear(x).sin() + self.shift, self.linear(y).cos()


@pytest.mark.parametrize("pure", [False, True])
def test_values_and_gradients(pure):
    torch.manual_seed(0)
    layers = nn.ModuleList([Two() for _ in range(6)])
    mine = copy.deepcopy(layers).to("xla")
    x = torch.randn(3, 4), torch.randn(3, 4)
    found = scan_layers(mine, tuple(each.to("xla") for each in x), is_layer_pure=pure)
    expected = x
    for layer in layers:
        expected = layer(*expected)
    torch.testing.assert_close([each.cpu() for each in found], list(expected))
    (found[0].sum() + found[1].sum()).backward()
    (expected[0].sum() + expected[1].sum()).backward()
    for parameter, other in zip(mine.parameters(), layers.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad.cpu(), other.grad, rtol=1e-4, atol=1e-5)


def test_no_layers():
    x = torch.ones(2)
    assert scan_layers([], x) is x


def test_layers_that_differ():
    x = torch.ones(3, device="xla")
    with pytest.raises(ValueError, match=r"mismatched keys, '0.bias' is in one of layer 0 and layer 1 alone"):
        scan_layers([nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3))], x)
    with pytest.raises(ValueError, match=r"Shape mismatch of 'weight': \[3, 3\] of torch.float32 in layer 0, \[3, 2\]"):
        scan_layers([nn.Linear(3, 3), nn.Linear(2, 3)], x)


def test_pure_layers_are_kept_as_long_as_the_first_lives():
    module._ONE_LAYER_CACHE.clear()
    layers = [nn.Linear(3, 3).to("xla") for _ in range(2)]
    x = torch.ones(3, device="xla")
    scan_layers(layers, x)
    assert not module._ONE_LAYER_CACHE
    scan_layers(layers, x, is_layer_pure=True)
    scan_layers(layers, x, is_layer_pure=True)
    assert len(module._ONE_LAYER_CACHE) == 1
    del layers
    gc.collect()
    assert not module._ONE_LAYER_CACHE
