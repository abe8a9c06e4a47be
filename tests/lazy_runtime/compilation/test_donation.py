"""Donated buffers go to the results that replace them."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import lazy_runtime
from lazy_runtime.compilation import compiler, donation, donation_ordering
from lazy_runtime.ir.flat import Flat

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    "adamw fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, fused=True),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=1e-2, momentum=0.5, foreach=False),
}


def _matrices() -> nn.Module:
    return nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.Tanh())])


def _images() -> nn.Module:
    """Whose gradients are made of the weights as well, by operators that take them."""
    layers = [layer for _ in range(3) for layer in (nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh())]
    return nn.Sequential(nn.Unflatten(1, (4, 4, 2)), *layers, nn.Flatten(), nn.LayerNorm(32), nn.Linear(32, 32))


class _Scaled(nn.Module):
    """A gradient that looks like an update of its weight: that times something."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList([torch.rand(16, 32) for _ in range(3)])

    def forward(self, x):
        x = x.repeat(2, 1)
        for weight in self.weights:
            x = (x * weight).cos() * weight
        return x


MODELS = {"matrices": _matrices, "images": _images, "scaled": _Scaled}


def _train(device: str, model_name: str, optimizer_name: str, form: str) -> list[torch.Tensor]:
    """The parameters after three steps; gradients are alive where the step is executed."""
    torch.manual_seed(0)
    model = MODELS[model_name]().double().to(device)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    call = torch.compile(model, backend="openxla") if form == "compiled" and device == "xla" else model
    for number in range(3):
        x = torch.linspace(-1, 1, 8 * 32, dtype=torch.float64).reshape(8, 32).to(device) + number
        optimizer.zero_grad()
        call(x).square().mean().backward()
        optimizer.step()
        if device == "xla":
            lazy_runtime.sync()
    return [tensor.detach().cpu() for tensor in (*model.parameters(), *model.buffers())]


def _pairs(text: str) -> dict[int, int]:
    """Argument → the result that takes its memory, as the program's text says."""
    header = re.search(r"input_output_alias=\{(.*?)\}, \w+=", text.splitlines()[0])
    found = re.findall(r"\{(\d*)\}: \((\d+),", header[1] if header else "")
    return {int(argument): int(result or 0) for result, argument in found}


@pytest.mark.parametrize("form", ["lazy", "compiled"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_updates_take_the_place_of_what_they_update(model, optimizer, form, monkeypatch):
    monkeypatch.setattr(donation_ordering, "LEAST", 33)
    compiler.clear()
    found = _train("xla", model, optimizer, form)
    torch.testing.assert_close(found, _train("cpu", model, optimizer, form))
    executables = [each for each in compiler._executables.values() if each.graph.donated]
    largest = max(executables, key=lambda each: len(each.graph.donated))
    graph = largest.graph
    places = largest._places or range(len(graph.outputs))
    text = largest.compiled.as_text() or ""
    pairs = _pairs(text)
    flat = Flat(graph)
    origins = donation.origins(graph, flat)
    number_of = {place: number for number, place in enumerate(places)}
    large = [leaf for leaf in graph.donated if len(graph.leaves[leaf].shape) > 1]
    assert len(large) >= 3  # the weights at least
    assert [origins.get(flat.outputs[number_of[pairs[leaf]]]) for leaf in large] == large
    if model != "scaled":  # there XLA computes products with the weights anew in each loop that needs them
        assert not re.findall(r"f64\[32,32\]\S* copy\(%arguments", text)  # a weight is written once all have read it


def test_results_come_back_in_the_order_of_the_graph():
    """Two leaves of one kind are exchanged, and a third result of their kind stands before."""
    x, y = (torch.full((4, 4), value).to("xla") for value in (1.0, 2.0))
    lazy_runtime.sync()
    for _ in range(3):
        total = x + y
        x.mul_(2)
        y.add_(total)
        z = y - x
        lazy_runtime.sync()
    assert [t[0, 0].item() for t in (x, y, total, z)] == [8.0, 28.0, 16.0, 20.0]


def test_programs_that_donate_nothing_are_left_as_they_are():
    compiler.clear()
    x = torch.ones(3).to("xla")
    y = x + 1
    lazy_runtime.sync()
    assert [each._places for each in compiler._executables.values()] == [None]
    assert y.tolist() == [2.0] * 3 == (x + 1).tolist()
