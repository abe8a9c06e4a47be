"""What a backward pass must not compute again."""

from __future__ import annotations

import pytest
import torch

INFINITE = float("inf")

FUNCTIONS = {
    "scaled": lambda x, w: (x / (x.std() + 0.1)).amax(-1),
    "normalized": lambda x, w: (lambda y: y.amax(2) - y.amin(2))((x - x.mean()) / (x.std(correction=0) + 0.1)),
    "affine": lambda x, w: torch.linalg.vector_norm(x * w + w, INFINITE, dim=-1),
    "a view of it": lambda x, w: (x * w + w).flatten(1).abs().unsqueeze(-1).amax(1),
    "all": lambda x, w: (x * w + w).max(),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_gradients_of_extrema(function, dtype, device):
    torch.manual_seed(1)
    inputs = torch.randn((1, 2, 64, 33), dtype=dtype), torch.randn(33, dtype=dtype)

    def gradients(called, device):
        x, w = (each.to(device).requires_grad_() for each in inputs)
        return torch.autograd.grad(called(x, w).square().sum(), (x, w), allow_unused=True)

    torch._dynamo.reset()
    found = gradients(torch.compile(function, backend="openxla", fullgraph=True), device)
    for mine, expected in zip(found, gradients(function, "cpu"), strict=True):
        if expected is None:
            assert mine is None
        else:
            torch.testing.assert_close(mine.cpu(), expected, rtol=1e-3, atol=1e-4)


def test_equality_of_arguments_saves_nothing_more(monkeypatch):
    from openxla_backend import backend

    parts = []
    cut = backend._cut
    monkeypatch.setattr(backend, "_cut", lambda *given, **options: parts.append(cut(*given, **options)) or parts[-1])
    torch._dynamo.reset()
    x = torch.randn(8, requires_grad=True)
    torch.compile(lambda x: (x.sin() * (x == 1)).cos().sum(), backend="openxla")(x).backward()
    ((forward, _),) = parts
    saved = forward.graph.output_node().args[0][1:]
    assert [node.op for node in saved] == ["placeholder"]
