"""Connectionist temporal classification, margin losses, and labels out of range."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.lazy_runtime.ops.comparison import check, rand

LABELS = torch.tensor([[1, 3, 3, 2], [2, 2, 2, 2], [3, 1, 2, 4]])  # repeated ones need a blank between


@pytest.mark.parametrize("lengths", [list, torch.tensor], ids=["ints", "tensors"])
@pytest.mark.parametrize("concatenated", [False, True])
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_ctc_loss(zero_infinity, concatenated, lengths):
    inputs, targets = [8, 5, 3], [3, 4, 0]  # the second has no way: five steps, four equal labels
    labels = torch.cat([row[:n] for row, n in zip(LABELS, targets, strict=True)]) if concatenated else LABELS

    def loss(x, labels):
        x = x.log_softmax(-1)
        options = {"reduction": "none", "zero_infinity": zero_infinity}
        return F.ctc_loss(x, labels, lengths(inputs), lengths(targets), **options)

    check(loss, rand(8, 3, 5), labels)


def test_ctc_loss_with_lengths_on_the_device():
    x, labels, lengths = rand(6, 3, 5, grad=False), LABELS, torch.tensor([6, 6, 0])

    def loss(*args):  # what log_alpha has beyond the lengths is undefined
        return torch.ops.aten._ctc_loss.Tensor(*args)[0]

    check(loss, x.log_softmax(-1), labels, lengths, torch.tensor([3, 1, 0]))
    on_xla = x.to("xla"), labels.to("xla"), (lengths + 1).to("xla"), torch.tensor([3, 1, 0]).to("xla")
    with pytest.raises(RuntimeError, match="Expected input_lengths to have value at most 6, but got value 7"):
        loss(*on_xla).cpu()


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("p", [1, 2])
def test_multi_margin_loss(p, reduction):
    weight = torch.rand(4)
    for x, target in [(rand(3, 4), torch.tensor([1, 3, 0])), (rand(4), torch.tensor(2)), (rand(4), torch.tensor([2]))]:
        check(F.multi_margin_loss, x, target, p=p, margin=0.7, weight=weight, reduction=reduction)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_multilabel_margin_loss(reduction):
    target = torch.tensor([[1, 1, -1, 3], [-1, 0, 0, 0], [3, 2, 1, 0]])
    check(F.multilabel_margin_loss, rand(3, 4), target, reduction=reduction)
    check(F.multilabel_margin_loss, rand(4), target[0], reduction=reduction)


def test_margin_losses_of_no_samples():
    """The mean and the sum are uninitialized memory on the CPU."""
    check(F.multi_margin_loss, rand(0, 4), torch.zeros(0, dtype=torch.int64), reduction="none")
    check(F.multilabel_margin_loss, rand(0, 4), torch.zeros(0, 4, dtype=torch.int64), reduction="none")
    empty = torch.ones(0, 4, device="xla"), torch.zeros(0, dtype=torch.int64, device="xla")
    assert F.multi_margin_loss(*empty).item() == 0


@pytest.mark.parametrize(
    ("loss", "target", "error", "message"),
    [
        (F.nll_loss, [1, 4], IndexError, "Target 4 is out of bounds"),
        (F.cross_entropy, [-2, 1], IndexError, "Target -2 is out of bounds"),
        (F.multi_margin_loss, [1, 4], RuntimeError, "target out of range"),
        (F.multilabel_margin_loss, [[1, 4, 0, 0]] * 2, RuntimeError, "argument #2 'target' is out of range"),
        (F.binary_cross_entropy, [[0.5] * 4] * 2, RuntimeError, "all elements of input should be between 0 and 1"),
    ],
)
def test_errors_of_values(loss, target, error, message):
    x = torch.full((2, 4), 1.5)
    for device in ("cpu", "xla"):
        with pytest.raises(error, match=message):
            loss(x.to(device), torch.tensor(target, device=device)).cpu()


def test_ignored_targets_are_in_range():
    check(F.nll_loss, rand(3, 4), torch.tensor([1, -100, 2]))
