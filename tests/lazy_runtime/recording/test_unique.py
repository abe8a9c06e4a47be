"""Unique elements and slices, sorted and consecutive."""

from __future__ import annotations

import math

import pytest
import torch

from lazy_runtime.common import metrics

NAN = math.nan
FLAGS = [(False, False), (True, False), (False, True), (True, True)]


def same(call, x):
    expected, result = call(x), call(x.to("xla"))
    if isinstance(expected, torch.Tensor):
        expected, result = (expected,), (result,)
    for here, there in zip(expected, result, strict=True):
        assert there.device.type == "xla"
        assert (there.dtype, there.shape, there.stride()) == (here.dtype, here.shape, here.stride())
        torch.testing.assert_close(there.cpu(), here, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("inverse", "counts"), FLAGS)
@pytest.mark.parametrize("function", [torch.unique, torch.unique_consecutive])
@pytest.mark.parametrize(
    "x",
    [
        torch.tensor([[3, 1, 1], [2, 2, 3]]),
        torch.tensor([NAN, 1, NAN, NAN, -0.0, 0.0, 1]),
        torch.tensor([True, False, False, True]),
        torch.tensor(3.0),
        torch.zeros(0),
    ],
    ids=["matrix", "nans", "bool", "0-d", "empty"],
)
def test_elements(x, function, inverse, counts):
    same(lambda x: function(x, return_inverse=inverse, return_counts=counts), x)


@pytest.mark.parametrize(("inverse", "counts"), FLAGS)
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("function", [torch.unique, torch.unique_consecutive])
def test_slices(function, dim, inverse, counts):
    x = torch.randint(0, 2, (20, 3, 4), generator=torch.Generator().manual_seed(0)).transpose(0, dim)
    same(lambda x: function(x, return_inverse=inverse, return_counts=counts, dim=dim), x)


def test_slices_of_nothing():
    same(lambda x: torch.unique(x, dim=0, return_inverse=True), torch.zeros(0, 3))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.unique(x[:, :0], dim=0),
        lambda x: torch.unique(x, dim=5),
        lambda x: torch.unique_consecutive(x, dim=5),
        lambda x: torch.unique(x[0, 0], dim=0),
        lambda x: torch.unique(x + 1j),
    ],
)
def test_what_torch_refuses(call):
    x = torch.ones(2, 3)
    with pytest.raises(Exception) as expected:  # noqa: PT011  torch says which
        call(x)
    with pytest.raises(expected.type) as found:
        call(x.to("xla"))
    assert str(found.value) == str(expected.value)


def test_only_the_size_is_read():
    x = torch.tensor([3, 1, 1]).to("xla")
    metrics.clear()
    x.unique()
    assert metrics.value("TransferFromDevice") == 1
    assert not [name for name in metrics.names() if name.startswith("aten::")]
