"""Whether tensors still have their values."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from lazy_runtime.tensor import xla_tensor as tensor
from lazy_runtime.tensor.xla_tensor import Unchanged, rebind, unwrap


@pytest.fixture(params=["native", "python"], autouse=True)
def implementation(request, monkeypatch):
    if request.param == "python":  # where it was built without Python's headers
        monkeypatch.setattr(tensor, "_many", tensor.InPython)


@pytest.fixture
def tensors() -> list[torch.Tensor]:
    return [torch.nn.Parameter(torch.randn(2, 3, device="xla")), torch.ones(4, device="xla")]


def test_reading_changes_nothing(tensors):
    unchanged = Unchanged(tensors)
    (tensors[0] @ tensors[0].T).cpu()
    tensors[1].view(2, 2)
    assert unchanged.of(tensors)
    assert unchanged.of(tensors)


def _in_place(x: torch.Tensor) -> None:
    x.mul_(2)


def _alias(x: torch.Tensor) -> None:
    x.view(-1)[0] = 3.0


def _data(x: torch.Tensor) -> None:
    x.data = x.data * 2


def _rebound(x: torch.Tensor) -> None:
    rebind(unwrap(x), unwrap(x * 2).handle)


def _swapped(x: torch.Tensor) -> None:
    torch.utils.swap_tensors(x, torch.nn.Parameter(x * 2) if isinstance(x, torch.nn.Parameter) else x * 2)


@pytest.mark.parametrize("write", [_in_place, _alias, _data, _rebound, _swapped])
@torch.no_grad()
def test_a_write_is_seen(tensors, write):
    for x in tensors:
        unchanged = Unchanged(tensors)
        write(x)
        assert not unchanged.of(tensors)
        assert not unchanged.of(tensors)
        assert Unchanged(tensors).of(tensors)


@torch.no_grad()
def test_a_write_elsewhere_is_none(tensors):
    unchanged = Unchanged(tensors)
    for write in (_in_place, _rebound):
        write(torch.ones(3, device="xla"))
        assert unchanged.of(tensors)


@torch.no_grad()
def test_the_values_count_and_not_who_holds_them(tensors):
    unchanged = Unchanged(tensors)
    others = [torch.nn.Parameter(x.detach()) for x in tensors]
    for _ in range(2):
        assert unchanged.of(others)
    assert not unchanged.of(others[:1])
    assert not unchanged.of(others[::-1])
    others[1].add_(0)  # of `tensors` too: they share their memory
    assert not unchanged.of(others)
    assert not unchanged.of(tensors)


def test_nothing_is_kept_alive(tensors):
    unchanged = Unchanged(tensors)
    handle = weakref.ref(unwrap(tensors[1]).handle)
    tensors[1] = tensors[1] + 1
    gc.collect()
    assert handle() is None
    assert not unchanged.of(tensors)


def test_what_is_on_another_device_is_refused(tensors):
    with pytest.raises(TypeError, match="expected a tensor on an xla device, got one on cpu"):
        Unchanged([torch.ones(2)])
    with pytest.raises(TypeError, match="expected a tensor on an xla device, got one on cpu"):
        Unchanged(tensors).of([tensors[0], torch.ones(4)])


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_sharing_tells_which_tensors_have_one_memory(device):
    base, other = torch.zeros(4, 3, device=device), torch.zeros(4, 3, device=device)
    tensors = [base[1], other, base.t(), torch.zeros(4, 3, device=device), other.view(-1)[2:]]
    assert tensor.sharing(tensors, 2) == (0, 1, 0, -1, 1)
    assert tensor.sharing(tuple(tensors), 0) == (-1,) * 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_what_is_read_is_the_user_s_to_resize(dtype):
    y = (torch.arange(3, device="xla") + 1).to(dtype).cpu()
    assert y.resize_(10)[:3].tolist() == [1, 2, 3]
