"""Products of groups of rows, each with its own matrix."""

from __future__ import annotations

import pytest
import torch

from lazy_runtime.torch_xla.experimental.custom_kernel import (
    GMM,
    gmm,
    gmm_backward,
    gmm_xla,
    repeat_with_fixed_output_size,
    tgmm,
)

SIZES = [3, 0, 4, 1]


def grouped(lhs, rhs):
    return torch.cat([rows @ matrix for rows, matrix in zip(lhs.split([*SIZES, 2]), [*rhs, rhs[0] * 0], strict=True)])


def operands():
    torch.manual_seed(0)
    return torch.randn(10, 5), torch.randn(4, 5, 6), torch.tensor(SIZES, dtype=torch.int32)


def test_products():
    lhs, rhs, sizes = operands()
    mine = [x.to("xla") for x in (lhs, rhs, sizes)]
    expected = grouped(lhs, rhs)
    for found in (gmm(*mine), gmm_xla(*mine), torch.ops.xla.gmm(*mine)):
        torch.testing.assert_close(found.cpu(), expected)
    turned = gmm(mine[0], mine[1].transpose(1, 2), mine[2], transpose_rhs=True)
    torch.testing.assert_close(turned.cpu(), expected)


def test_some_groups():
    lhs, rhs, sizes = operands()
    offset = torch.tensor([2], dtype=torch.int32)
    found = gmm(lhs.to("xla"), rhs[2:].to("xla"), sizes.to("xla"), group_offset=offset.to("xla"))
    expected = grouped(lhs, rhs)
    expected[:3] = 0
    torch.testing.assert_close(found.cpu(), expected)
    gradient = torch.randn(10, 6)
    transposed = [x.to("xla") for x in (lhs.T, gradient, sizes)]
    whole = tgmm(*transposed).cpu()
    start = 0
    for number, size in enumerate(SIZES):
        rows = slice(start, start + size)
        torch.testing.assert_close(whole[number], lhs[rows].T @ gradient[rows])
        start += size
    some = tgmm(*transposed, group_offset=offset.to("xla"), num_actual_groups=2)
    torch.testing.assert_close(some.cpu(), whole[2:])


def test_gradients():
    lhs, rhs, sizes = operands()
    mine = [x.to("xla").requires_grad_() for x in (lhs, rhs)]
    plain = [x.clone().requires_grad_() for x in (lhs, rhs)]
    gradient = torch.randn(10, 6)
    GMM.apply(*mine, sizes.to("xla")).backward(gradient.to("xla"))
    grouped(*plain).backward(gradient)
    found = gmm_backward(gradient.to("xla"), *(x.detach() for x in mine), sizes.to("xla"))
    for x, other, again in zip(mine, plain, found, strict=True):
        torch.testing.assert_close(x.grad.cpu(), other.grad)
        torch.testing.assert_close(again.cpu(), other.grad)


def test_repetitions():
    x, repeats = torch.arange(5), torch.tensor([2, 0, 1, 3, 0])  # the last one is what fills up
    whole = x.repeat_interleave(repeats)
    for length, expected in ((6, whole), (4, whole[:4]), (8, torch.cat([whole, x[-1:], x[-1:]]))):
        found = repeat_with_fixed_output_size(x.to("xla"), repeats.to("xla"), length)
        assert torch.equal(found.cpu(), expected)
    with pytest.raises(ValueError, match="expected vectors"):
        repeat_with_fixed_output_size(x.reshape(1, 5), repeats, 3)
