"""Gradients through a buffer that the forward pass updates are those of its value when it was read."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lazy_runtime


class Counter(nn.Module):
    """The backward pass would recompute from the buffer, and count once more."""

    def forward(self, x):
        self.buffer += 1
        return x * (1 + 0.1 * self.buffer) * self.scale


class ReadBefore(nn.Module):
    def forward(self, x):
        y = x * self.scale * (self.buffer + 1).sin()
        self.buffer.mul_(0.5).add_(x.detach().mean(0), alpha=0.5)
        return y


class Cloned(nn.Module):
    """A copy that tracing elides: the buffer itself would be saved."""

    def forward(self, x):
        before = self.buffer.clone()
        self.buffer.copy_(x.detach()[0])
        return x * before * self.scale + self.buffer * self.scale


class OfAView(nn.Module):
    def forward(self, x):
        y = self.scale * x * self.buffer.clone()[:1]
        self.buffer[:1] = x.detach()[0, 0]
        return y * self.buffer.sum()


@pytest.mark.parametrize(("device", "compiled"), [("cpu", "model"), ("xla", "model"), ("xla", "step")])
@pytest.mark.parametrize("network", [Counter, ReadBefore, Cloned, OfAView])
def test_the_value_that_was_read(network, device, compiled):
    def gradients(device: str, compiled: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = network()
        model.register_buffer("buffer", torch.rand(3, dtype=torch.float64))
        model.scale = nn.Parameter(torch.rand(3, dtype=torch.float64))
        model.to(device)
        forward = torch.compile(model, backend="openxla") if compiled == "model" else model

        def step(x: torch.Tensor) -> torch.Tensor:
            loss = forward(x).square().sum()
            loss.backward()
            return loss

        run = torch.compile(step, backend="openxla") if compiled == "step" else step
        seen = []
        for _ in range(3):
            model.scale.grad = None
            run(torch.rand(2, 3, dtype=torch.float64).to(device))
            if device == "xla":
                lazy_runtime.sync()
            seen += [model.scale.grad.cpu(), model.buffer.cpu().clone()]
        return seen

    torch.testing.assert_close(gradients(device, compiled), gradients("cpu", ""), rtol=1e-12, atol=0)
