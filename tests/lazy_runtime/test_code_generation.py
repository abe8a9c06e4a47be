"""Which programs get which of XLA's code generators for the CPU."""

from __future__ import annotations

import pytest
import torch

from lazy_runtime import code_generation, compiler

aten = torch.ops.aten

LARGE = code_generation.LARGE


@pytest.fixture
def chosen(monkeypatch):
    """Whether each program that is compiled gets the newer one."""
    compiler.clear()
    found = []
    options = code_generation.options

    def spy(graph, lowered):
        found.append(options(graph, lowered)["xla_cpu_use_fusion_emitters"])
        return options(graph, lowered)

    monkeypatch.setattr(code_generation, "options", spy)
    yield found
    compiler.clear()


def written_over_itself(x):
    """What the newer one would miscompile if our slices were written in place."""
    y = x[::2]
    y[1:] = y[:-1].clone()
    x[::2] = y
    return x


CASES = {
    "small": (lambda x: x.exp(), LARGE - 1, False),
    "large": (lambda x: x.exp(), LARGE, True),
    "large inside": (lambda x: x.exp().sum(), LARGE, True),
    "a slice is written": (written_over_itself, LARGE, True),
    "elements are written": (lambda x: x.index_put((torch.tensor([1, 5], device=x.device),), x[:2]), LARGE, False),
    "a diagonal is written": (lambda x: x.reshape(2, -1).diagonal_scatter(x[:2]), LARGE, False),
    "an embedding's gradients are added up": (
        lambda x: aten.embedding_dense_backward(x[:, None], torch.arange(9, device=x.device) // 2, LARGE, -1, False),
        9,
        True,
    ),
    "rows are added up": (lambda x: x.index_add(0, torch.tensor([1, 5], device=x.device), x[:2]), LARGE, False),
}


@pytest.mark.parametrize("name", CASES)
def test_lazily(chosen, name):
    function, size, expected = CASES[name]
    x = torch.linspace(0, 1, size)
    found = function(x.to("xla")).cpu()
    assert chosen[-1] is expected
    torch.testing.assert_close(found, function(x.clone()))


@pytest.mark.parametrize("name", CASES)
def test_compiled(chosen, name):
    function, size, expected = CASES[name]
    torch._dynamo.reset()
    x = torch.linspace(0, 1, size)
    found = torch.compile(function, backend="openxla")(x.clone())
    assert chosen[-1] is expected
    torch.testing.assert_close(found, function(x.clone()))


def test_a_step_is_looked_into(chosen):
    """The graphs of compiled calls are single calls of the step's."""
    torch._dynamo.reset()
    weight = torch.ones(LARGE).to("xla").requires_grad_()
    torch.compile(lambda x: (x.sin() * 2).sum(), backend="openxla")(weight).backward()
    assert torch.isfinite(weight.grad).all()
    assert chosen == [True]
