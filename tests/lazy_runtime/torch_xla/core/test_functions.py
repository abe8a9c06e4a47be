"""Layers over ranks, against torch's of one process with the whole batch."""

from __future__ import annotations

import pytest
import torch

from lazy_runtime.torch_xla import runtime as xr
from lazy_runtime.torch_xla.core import functions as xf
from lazy_runtime.torch_xla.core import xla_model as xm


def whole(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)) * 2 + 5


def normalized() -> tuple[torch.Tensor, ...]:
    rank, norm = xr.global_ordinal(), xf.SyncBatchNorm(3, momentum=0.2).to("xla")
    x = whole(8, 3, 5).chunk(xr.world_size())[rank].to("xla").requires_grad_()
    y = norm(x)
    (y * y.detach().cos()).sum().backward()
    xm.all_reduce("sum", [norm.weight.grad, norm.bias.grad])
    norm.eval()
    found = y, x.grad, norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var, norm(x)
    return tuple(each.detach().cpu() for each in found)


def test_sync_batch_norm(ranks):
    norm = torch.nn.BatchNorm1d(3, momentum=0.2)
    x = whole(8, 3, 5).requires_grad_()
    y = norm(x)
    (y * y.detach().cos()).sum().backward()
    norm.eval()
    after = norm(x)
    for rank, found in enumerate(ranks(2)(normalized)):
        part = slice(4 * rank, 4 * rank + 4)
        expected = y[part], x.grad[part], norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var
        torch.testing.assert_close(found, (*(each.detach() for each in expected), after[part].detach()))


def test_sync_batch_norm_of_one_rank():
    for sizes in ((4, 3), (4, 3, 2, 2, 2)):
        mine, torchs = xf.SyncBatchNorm(3), torch.nn.BatchNorm3d(3) if len(sizes) == 5 else torch.nn.BatchNorm1d(3)
        x = whole(*sizes)
        torch.testing.assert_close(mine.to("xla")(x.to("xla")).cpu(), torchs(x))
        torch.testing.assert_close(mine.running_var.cpu(), torchs.running_var)
    assert xf.SyncBatchNorm(4, momentum=0.3).extra_repr() == "4, eps=1e-05, momentum=0.3"
    assert repr(xf.SyncBatchNorm(3, 1e-3)) == "SyncBatchNorm(3, eps=0.001, momentum=0.1)"
    with pytest.raises(ValueError, match="the second of 3"):
        xf.SyncBatchNorm(3)(torch.ones(2, 4))


def multiplied() -> tuple[torch.Tensor, ...]:
    rank, count = xr.global_ordinal(), xr.world_size()
    w = whole(6, 4 * count).chunk(count, 1)[rank].to("xla").requires_grad_()
    x = (whole(4 * count, 8) + rank).to("xla").requires_grad_()
    y = xf.distributed_mm(w, x, split=2)
    (y * (rank + 1)).sum().backward()
    return y.detach().cpu(), w.grad.cpu(), x.grad.cpu()


def test_products_of_a_shared_weight(ranks):
    w = whole(6, 8).requires_grad_()
    inputs = [(whole(8, 8) + rank).requires_grad_() for rank in range(2)]
    sum(((w @ x) * (rank + 1)).sum() for rank, x in enumerate(inputs)).backward()
    for rank, (y, w_grad, x_grad) in enumerate(ranks(2)(multiplied)):
        torch.testing.assert_close(y, (w @ inputs[rank]).detach())
        torch.testing.assert_close(w_grad, w.grad.chunk(2, 1)[rank])
        torch.testing.assert_close(x_grad, inputs[rank].grad)


def test_products_of_one_rank():
    w, x = whole(2, 3), whole(3, 4)
    torch.testing.assert_close(xf.distributed_mm(w.to("xla"), x.to("xla")).cpu(), w @ x)
    with pytest.raises(ValueError, match="with 3 rows"):
        xf.distributed_mm(w, x.T)
    with pytest.raises(ValueError, match="divisor of 4"):
        xf.distributed_mm(w, x, 3)


def test_the_functions_are_classes_too():
    x = torch.ones(2, device="xla", requires_grad=True)
    for made in (xf.AllReduce.apply(x, "sum", 2.0, None), xf.AllGather.apply(x, 0), xf.AllReduceSumLayer.apply(x)):
        assert torch.autograd.grad(made.sum(), x)[0].tolist() in ([1.0, 1.0], [2.0, 2.0])
