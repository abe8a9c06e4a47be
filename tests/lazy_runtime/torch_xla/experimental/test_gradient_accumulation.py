"""`experimental.gradient_accumulation`, against a loop in Python on the CPU."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lazy_runtime.torch_xla.core import xla_builder as xb
from lazy_runtime.torch_xla.experimental.gradient_accumulation import (
    GradientAccumulationContext,
    XlaBuildHelper,
    gradient_accumulation,
)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        self.unused = nn.Linear(1, 1)

    def forward(self, x):
        return self.layers(x)


def test_gradients_add_up():
    torch.manual_seed(0)
    model, x, y = Model(), torch.randn(5, 2, 3), torch.randn(5, 2, 1)
    mine = copy.deepcopy(model).to("xla")

    def step_of(module):
        def step(x, y, count):
            return nn.functional.mse_loss(module(x), y), count + 1

        return step

    for _ in range(2):  # the second adds to the gradients of the first
        loss, count = gradient_accumulation(
            step_of(mine), (x.to("xla"), y.to("xla")), mine, torch.tensor(2, device="xla")
        )
        expected = 0.0
        for one, other in zip(x, y, strict=True):
            each = nn.functional.mse_loss(model(one), other) / 5
            each.backward()
            expected += each.item()
        assert count.item() == 7
        torch.testing.assert_close(loss.item(), expected)
        for parameter, torchs in zip(mine.layers.parameters(), model.layers.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad.cpu(), torchs.grad)
        assert mine.unused.weight.grad is None
    only = gradient_accumulation(lambda x: mine(x).sum(), (x.to("xla"),), mine)
    torch.testing.assert_close(only.item(), model(x).sum().item() / 5, rtol=1e-5, atol=1e-5)


def test_refusals():
    model = nn.Linear(3, 1).to("xla")
    x = torch.ones(2, 3, device="xla")
    for tensors, match in (((), "has no tensor"), ((x, x[:1]), "has 1 batches"), ((x, 1), "is no tensor of batches")):
        with pytest.raises(ValueError, match=match):
            gradient_accumulation(lambda *x: model(x[0]).sum(), tensors, model)

    def writes(x, count):
        count += 1
        return model(x).sum(), count

    with pytest.raises(AssertionError, match="writes to its arguments"):
        gradient_accumulation(writes, (x,), model, torch.tensor(0, device="xla"))


def test_names():
    context = GradientAccumulationContext(num_gradient_steps=2, num_iterable_tensors=1, num_carried_tensors=0)
    assert context.num_gradient_steps == 2
    helper, x = XlaBuildHelper("sum"), torch.ones(2, device="xla")
    assert (helper.add_param(x), helper.add_param(x, 1), helper.num_params) == (0, 1, 2)
    assert helper.param_tensors == (x, x)
    first, second = helper.params
    (found,) = xb.user_computation("sum", helper.param_tensors, (first + second).build("sum"))
    assert found.tolist() == [2.0, 2.0]
