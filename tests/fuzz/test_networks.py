"""The network fuzzer's share of the test suite: a few programs of one seed, and what finds and judges a difference."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from .networks import check, generate, run, smaller
from .networks.language import LAYERS, Program
from .shrink import shrink


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("seed", range(2))
def test_random_networks(seed):
    for program in generate(seed, 1):
        difference = check(program)
        assert difference is None or difference.road == "torch", f"{difference}\n{program}"


def test_programs_are_the_same_for_the_same_seed():
    assert [str(p) for p in generate(5, 3)] == [str(p) for p in generate(5, 3)] != [str(p) for p in generate(6, 3)]


def test_every_layer_is_drawn():
    drawn = {gene.name for program in generate(7, 50) for gene in program.recipe.layers}
    assert len(drawn) > 0.75 * len(LAYERS), set(LAYERS) - drawn


SOURCE = """
import torch
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m = nn.Linear(3, 2)

    def forward(self, x):
        return WRONG(self.m(x))

def WRONG(y):
    return y

def batch(number):
    torch.manual_seed(1 + number)
    return torch.randn(1, 3, dtype=torch.float64), torch.randn(1, 2, dtype=torch.float64)

def loss_of(y, target):
    return F.mse_loss(y, target)

def optimizer_of(model, device):
    return torch.optim.SGD(model.parameters(), lr=0.1)

def scheduler_of(optimizer):
    return None

def backward(model, x, target):
    loss = loss_of(model(x), target)
    loss.backward()
    return loss

def step(model, optimizer, x, target):
    optimizer.zero_grad()
    loss = backward(model, x, target)
    optimizer.step()
    return loss
"""


def test_a_wrong_loss_is_found():
    assert check(Program(SOURCE), ["lazy"]) is None
    found = check(
        Program(SOURCE.replace("return y\n", "return y * (1 + 1e-6) if y.device.type == 'xla' else y\n")), ["lazy"]
    )
    assert found is not None
    assert (found.road, found.kind) == ("lazy", "loss")


@pytest.mark.parametrize(("where", "who"), [("xla", "lazy"), ("cpu", "torch")])
def test_finite_differences_decide_who_is_wrong(where, who):
    """The forward pass is right, and one of both has a gradient of half its size."""
    half = f"return y if y.device.type != '{where}' else y * 0.5 + (y * 0.5).detach()\n"
    found = check(Program(SOURCE.replace("return y\n", half)), ["lazy"])
    assert found is not None
    assert found.road == who
    assert "finite differences" in found.text


def test_an_error_of_both_is_no_difference_and_one_of_one_is():
    error = "raise IndexError('no')\n"
    assert check(Program(SOURCE.replace("return y\n", error)), ["lazy", "model"]) is None
    found = check(Program(SOURCE.replace("return y\n", f"if y.device.type == 'xla': {error}    return y\n")), ["lazy"])
    assert found is not None
    assert found.kind == "IndexError: no"


def test_rounding_that_a_network_amplifies_is_no_difference():
    """A bias before a batch norm has a gradient of rounding, and Rprop goes by its sign."""
    source = SOURCE.replace("nn.Linear(3, 2)", "nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))")
    source = source.replace("randn(1, ", "randn(3, ").replace(
        "SGD(model.parameters(), lr=0.1)", "Rprop(model.parameters())"
    )
    assert check(Program(source), ["lazy"]) is None
    expected = run._outcome(Program(source), "cpu")
    tolerances = run._tolerances(Program(source), expected, "lazy")
    assert tolerances["m.0.bias after 3 steps"] > 1e-3 > 1e-8 > tolerances["m.0.weight after 3 steps"]


def test_shrinking_leaves_the_layers_that_fail():
    program = next(p for p in generate(3, 40) if len(p.recipe.layers) > 4 and "save" not in str(p.recipe))
    name = program.recipe.layers[-1].name
    small = shrink(program, lambda p: p.recipe.layers and p.recipe.layers[-1].name == name, smaller)
    assert len(small.recipe.layers) <= len(program.recipe.layers) // 2
    assert isinstance(small.load().Net(), nn.Module)
