"""Multi-tensor operators."""

from __future__ import annotations

import pytest
import torch

CASES = {
    "add": lambda xs, ys: torch._foreach_add(xs, ys, alpha=2),
    "add scalar": lambda xs, ys: torch._foreach_add(xs, 3),
    "add scalars": lambda xs, ys: torch._foreach_add(xs, [1.0, 2.0]),
    "add tensor": lambda xs, ys: torch._foreach_add(xs, ys[0].sum(), alpha=2),
    "addcmul": lambda xs, ys: torch._foreach_addcmul(xs, ys, ys, value=0.5),
    "addcdiv scalars": lambda xs, ys: torch._foreach_addcdiv(xs, ys, ys, [0.5, 2.0]),
    "addcdiv tensor": lambda xs, ys: torch._foreach_addcdiv(xs, ys, ys, torch.tensor([0.5, 2.0])),
    "lerp": lambda xs, ys: torch._foreach_lerp(xs, ys, 0.3),
    "maximum": lambda xs, ys: torch._foreach_maximum(xs, ys),
    "maximum scalar": lambda xs, ys: torch._foreach_maximum(xs, 0.2),
    "minimum scalars": lambda xs, ys: torch._foreach_minimum(xs, [0.2, 0.4]),
    "norm": lambda xs, ys: torch._foreach_norm(xs, 2),
    "max": lambda xs, ys: torch._foreach_max(xs),
    "pow": lambda xs, ys: torch._foreach_pow(ys, 3),
    "pow of a number": lambda xs, ys: torch._foreach_pow(2.0, xs),
    "sqrt": lambda xs, ys: torch._foreach_sqrt(ys),
    "clamp": lambda xs, ys: torch._foreach_clamp_max(xs, 0.1),
}


@pytest.mark.parametrize("name", CASES)
def test_functional(name):
    xs, ys = [torch.randn(3), torch.randn(2, 2)], [torch.rand(3) + 1, torch.rand(2, 2) + 1]
    expected = CASES[name](xs, ys)
    got = CASES[name]([x.to("xla") for x in xs], [y.to("xla") for y in ys])
    assert len(got) == len(expected)
    for ours, torchs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours.cpu(), torchs)


def test_in_place():
    xs = [torch.ones(3, device="xla"), torch.ones(2, device="xla")]
    views = [x[:1] for x in xs]
    torch._foreach_mul_(xs, 3)
    torch._foreach_add_(xs, xs)
    torch._foreach_copy_(views, [torch.zeros(1, device="xla"), torch.ones(1, device="xla")])
    assert xs[0].tolist() == [0, 6, 6]
    assert xs[1].tolist() == [1, 6]
    torch._foreach_zero_(xs)
    assert xs[1].tolist() == [0, 0]
