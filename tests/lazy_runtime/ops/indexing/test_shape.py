"""Views' copies, strides across devices, and factories: what OpInfo's samples do not cover."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

X = torch.arange(120.0).reshape(2, 3, 4, 5)


@pytest.mark.parametrize("part", [X, X[:, :, ::2], X[:1], X[:, 1].expand(3, 2, 4, 5), X[:, :, :0]])
@pytest.mark.parametrize("options", [{}, {"dtype": torch.float64}, {"memory_format": torch.contiguous_format}])
def test_a_copy_to_the_device_keeps_the_strides(part, options):
    for order in itertools.permutations(range(4)):
        source = part.permute(order)
        copy = source.to("xla", **options)
        assert copy.stride() == source.to("meta", **options).stride()
        assert torch.equal(copy.cpu(), source.to(copy.dtype))


def test_the_copy_has_a_gradient():
    weight = torch.ones(2, 3, requires_grad=True)
    (weight.t().to("xla") * 3).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [[3] * 3] * 2


COPIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "expand_copy": lambda x: torch.expand_copy(x[0], (2, 3, 4, 5)),
    "permute_copy": lambda x: torch.permute_copy(x, (3, 0, 1, 2)),
    "as_strided_copy": lambda x: torch.as_strided_copy(x, (2, 2), (1, 3)),
    "diag": lambda x: torch.diag(x[0, 0]),
    "select_copy": lambda x: torch.select_copy(x, 3, 1),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_of_a_view_is_contiguous_and_shares_nothing(name):
    x = X.to("xla")
    expected, copy = COPIES[name](X), COPIES[name](x)
    assert copy.stride() == expected.stride()
    x.zero_()
    assert torch.equal(copy.cpu(), expected)


@pytest.mark.parametrize("function", [torch.linspace, torch.logspace])
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float64])
@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_both_ends_are_rounded_first(function, dtype, steps):
    expected = function(0.9, 2.9, steps, dtype=dtype)
    for start in (0.9, torch.tensor(0.9, dtype=torch.float64, device="xla")):
        got = function(start, 2.9, steps, dtype=dtype, device="xla").cpu()
        # XLA's power and torch's differ in the last bit
        torch.testing.assert_close(got, expected, rtol=1e-15, atol=0)
