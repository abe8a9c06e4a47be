"""Writes to scalars in compiled graphs."""

from __future__ import annotations

import pytest
import torch

from tests.openxla_backend.helpers import compiled


def scaled(b, x, w):
    b.mul_(0.5)
    return (x - b) * w


def copied(b, x, w):
    b.copy_(x.detach().mean())
    return (x - b) * w


@pytest.mark.parametrize("device", ["cpu", "xla"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("function", [scaled, copied])
def test_a_write_to_a_scalar_is_kept(function, trains, dtype, device):
    """The scalar is a float64 on the CPU: torch 2.13 loses the write under aot_eager and inductor."""

    def arguments(device):
        generator = torch.Generator().manual_seed(0)
        b = torch.ones((), dtype=dtype).to(device)
        x = torch.randn(3, dtype=dtype, generator=generator).to(device)
        return b, x, torch.ones(3, dtype=dtype).to(device).requires_grad_(trains)

    expected_arguments, given = arguments("cpu"), arguments(device)
    expected = function(*expected_arguments)
    run = compiled(function)
    torch.testing.assert_close(run(*given).cpu(), expected)
    torch.testing.assert_close(given[0].cpu(), expected_arguments[0])
    expected = function(*expected_arguments)
    torch.testing.assert_close(run(*given).cpu(), expected)
    torch.testing.assert_close(given[0].cpu(), expected_arguments[0])


def test_a_number_that_is_read_is_still_a_constant():
    def f(x, scale):
        return x * scale.item() + 1

    x, scale = torch.randn(3), torch.tensor(3.0, dtype=torch.float64)
    run = compiled(f)
    torch.testing.assert_close(run(x, scale), f(x, scale))
    torch.testing.assert_close(run(x, scale + 1), f(x, scale + 1))
