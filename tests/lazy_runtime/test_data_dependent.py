"""Operators whose result's size depends on data."""

from __future__ import annotations

import pytest
import torch

from lazy_runtime import metrics


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.nonzero(),
        lambda x: x[x > 3],
        lambda x: x[x[:, 0] > 3],
        lambda x: x[:, x[0] > 1],
        lambda x: x[torch.tensor([True, False, True])],
        lambda x: x[x[:, 0] > 100],
        lambda x: x.masked_select(x[0] > 1),
        lambda x: torch.where(x > 2)[1],
        lambda x: x.bool(),
    ],
)
def test_reads(read):
    x = torch.arange(12.0).reshape(3, 4)
    got = read(x.to("xla"))
    assert got.device.type == "xla"
    assert torch.equal(got.cpu(), read(x))


def test_masked_reads_are_counted_and_differentiable():
    x = torch.arange(6.0).to("xla").requires_grad_()
    x[x > 2].sum().backward()
    assert metrics.value("xla::nonzero") >= 1
    assert x.grad.tolist() == [0, 0, 0, 1, 1, 1]


def test_masked_write_of_several_values():
    for device in ("cpu", "xla"):
        x = torch.arange(6.0, device=device)
        x[x > 2] = torch.tensor([7.0, 8.0, 9.0], device=device)
        assert x.tolist() == [0, 1, 2, 7, 8, 9]


def test_mask_of_another_shape():
    x = torch.ones(2, 3, device="xla")
    with pytest.raises(IndexError, match=r"The shape of the mask \[3, 3\] at index 0 does not match"):
        x[torch.ones(3, 3, dtype=torch.bool, device="xla")]
