"""Bags of embeddings in every mode, and tables that are renormalized on reading."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.lazy_runtime.ops.comparison import check, close, rand

INDICES = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9])


@pytest.mark.parametrize("padding_idx", [None, 4])
@pytest.mark.parametrize("last", [False, True], ids=["", "last offset"])
@pytest.mark.parametrize("mode", [0, 1, 2], ids=["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bags(dtype, mode, last, padding_idx):
    """All four results; the second bag is empty."""
    offsets = torch.tensor([0, 4, 4, 6, 8] if last else [0, 4, 4, 6])

    def bags(weight, indices, offsets):
        return torch.embedding_bag(weight, indices, offsets, False, mode, False, None, last, padding_idx)

    check(bags, rand(10, 5, dtype=dtype), INDICES, offsets)
    check(bags, rand(10, 5, dtype=dtype, grad=False), INDICES.int(), offsets.int())


def test_weights_of_samples():
    def bags(weight, per_sample):
        offsets = torch.tensor([0, 4, 6], device=weight.device)
        return F.embedding_bag(
            INDICES.to(weight.device), weight, offsets, mode="sum", per_sample_weights=per_sample, padding_idx=4
        )

    check(bags, rand(10, 5), rand(8))


def test_scaling_by_frequency():
    """As documented: torch's CPU kernel looks the counts up for other indices."""
    weight = torch.ones(5, 2, device="xla", requires_grad=True)
    indices, offsets = torch.tensor([1, 3, 3, 3], device="xla"), torch.tensor([0, 2], device="xla")
    F.embedding_bag(indices, weight, offsets, mode="sum", scale_grad_by_freq=True).sum().backward()
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad[:, 0].cpu(), torch.tensor([0.0, 1, 0, 1, 0]))


@pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf")])
def test_renormalized(norm_type):
    def look_up(weight):
        table = weight.clone()
        rows = F.embedding(INDICES.to(weight.device), table, max_norm=1.0, norm_type=norm_type)
        return rows, table

    check(look_up, rand(10, 5, grad=False))


@pytest.mark.parametrize(
    ("indices", "offsets", "message"),
    [
        ([3, 10], [0], "Expected idx >= 0 && idx < num_embeddings but found idx to be 10"),
        ([3, -1], [0], "found idx to be -1"),
        ([3, 1], [1], r"offsets\[0\] has to be 0.* However, got 1"),
        ([3, 1], [0, 3], r"offsets\[-1\] can not be greater than input's length 2 but got offsets\[-1\] of 3"),
    ],
)
def test_errors_of_values(indices, offsets, message):
    weight = torch.ones(10, 2, device="xla")
    with pytest.raises(RuntimeError, match=message):
        F.embedding_bag(
            torch.tensor(indices, device="xla"), weight, torch.tensor(offsets, device="xla"), mode="max"
        ).cpu()


def test_no_bags():
    weight, nothing = torch.ones(10, 2), torch.zeros(0, dtype=torch.int64)
    found = [F.embedding_bag(nothing.to(d), weight.to(d), nothing.to(d)) for d in ("xla", "cpu")]
    close(*found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("index", [torch.int64, torch.int32])
@pytest.mark.parametrize("padding_idx", [-1, 3])
@pytest.mark.parametrize("scaled", [False, True])
def test_gradients_are_added_up_as_torch_does(dtype, index, padding_idx, scaled):
    grad, indices = torch.randn(5, 7, 8).to(dtype), torch.randint(0, 11, (5, 7), dtype=index)
    found, expected = (
        torch.ops.aten.embedding_dense_backward(grad.to(d), indices.to(d), 11, padding_idx, scaled)
        for d in ("xla", "cpu")
    )
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=0)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("wrong", [-2, 11, 1 << 40])
def test_gradients_of_rows_that_are_not_there(wrong, scaled):
    grad, indices = torch.randn(2, 8).to("xla"), torch.tensor([0, wrong]).to("xla")
    with pytest.raises(IndexError, match="index out of range in self"):
        torch.ops.aten.embedding_dense_backward(grad, indices, 11, -1, scaled).cpu()
