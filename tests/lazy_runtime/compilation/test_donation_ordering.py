"""A leaf is overwritten in place once all others have read it."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import nn

import lazy_runtime
from lazy_runtime.compilation import compiler, donation_ordering
from lazy_runtime.compilation.plan import CompilePlan
from lazy_runtime.ir.flat import Flat


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(donation_ordering, "LEAST", 16)
    compiler.clear()
    yield
    compiler.clear()


def _largest() -> compiler.Executable:
    """The program that donates most."""
    return max(compiler._executables.values(), key=lambda each: len(each.graph.donated))


def test_weights_of_convolutions_are_not_copied():
    """Those of torch's kernels, to whose gradient the weight goes, and those that are matrix products."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(4, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 4, 1, stride=2), nn.Tanh(), nn.Conv2d(4, 4, 3)]
    models = [nn.Sequential(*layers), copy.deepcopy(nn.Sequential(*layers)).to("xla")]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in models]
    for number in range(3):
        x = torch.linspace(-1, 1, 2 * 4 * 8 * 8).reshape(2, 4, 8, 8) + number
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            model(x.to(next(model.parameters()).device)).square().mean().backward()
            optimizer.step()
        lazy_runtime.sync()
    torch.testing.assert_close([p.cpu() for p in models[1].parameters()], list(models[0].parameters()))
    text = _largest().compiled.as_text() or ""
    assert "f32[4,4,3,3]" in text
    assert not re.findall(r"f32\[4,4,\d,\d\]\S* copy\(", text)


def _reads_beside(w):
    """Of the old value, by what the update does not need."""
    return w @ w


def _reads_by_a_view(w):
    return w.t()[1:] @ w


CASES = {
    "a product": (_reads_beside, 1),
    "a product of a view": (_reads_by_a_view, 1),
    "nothing": (lambda w: torch.full((8, 8), 2.0, device=w.device), 0),
}


@pytest.mark.parametrize("name", CASES)
def test_who_is_waited_for(name):
    function, expected = CASES[name]
    start, results = torch.rand(8, 8), []
    for device in ("cpu", "xla"):
        w = start.clone().to(device)
        for _ in range(3):
            y = function(w)
            w.mul_(0.5)
            w.add_(1)
            if device == "xla":
                lazy_runtime.sync()
        results.append((w.cpu(), y.cpu()))
    torch.testing.assert_close(*results)
    plan = donation_ordering.DonationOrdering(CompilePlan(_largest().graph))
    assert sum(map(len, plan.waiting.values())) == expected
    text = _largest().compiled.as_text() or ""
    assert text.count("aten::alias") == expected
    assert not re.findall(r" copy\(%arguments", text)


def test_the_old_value_is_kept_where_it_is_read_later():
    w = torch.rand(8, 8)
    x = w.clone().to("xla")
    for _ in range(3):
        old, before = x.clone(), w.clone()
        x.mul_(2)
        w.mul_(2)
        y, z = x @ old, w @ before
        lazy_runtime.sync()
        torch.testing.assert_close((x.cpu(), old.cpu(), y.cpu()), (w, before, z))


def test_operators_of_compiled_calls_are_known():
    torch._dynamo.reset()
    model = nn.Linear(8, 8).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    call = torch.compile(nn.Sequential(nn.Tanh(), model, nn.Tanh()), backend="openxla")
    for _ in range(3):
        x = torch.rand(4, 8).to("xla").requires_grad_()
        call(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        lazy_runtime.sync()
    graph = _largest().graph
    flat = Flat(graph)
    assert {len(operator.path) for operator in flat.operators} == {1, 2}
    assert [operator.call for operator in flat.operators if len(operator.path) == 1] == [
        call for call in graph.calls if call.nested is None
    ]
    assert len(flat.outputs) == len(graph.outputs)
    assert flat.outputs == sorted(set(flat.outputs), key=flat.outputs.index)
    assert donation_ordering.DonationOrdering(CompilePlan(graph)).waiting
