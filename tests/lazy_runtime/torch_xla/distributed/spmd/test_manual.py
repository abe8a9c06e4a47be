"""Parts of a program in which each device computes on its own part."""

from __future__ import annotations

import jax
import pytest
import torch

from lazy_runtime.torch_xla import _XLAC
from lazy_runtime.torch_xla.distributed import spmd as xs
from lazy_runtime.torch_xla.experimental.assume_pure import j2t_autograd


def mesh() -> xs.Mesh:
    return xs.Mesh(range(4), (2, 2), ("data", "model"))


def each_device_has_its_part():
    x = torch.randn(8, 6)
    mine = x.to("xla").requires_grad_()
    part = xs.enable_manual_sharding(mine, ("data", "model"), mesh=mesh())
    assert part.shape == (4, 3)
    largest = part - part.amax()  # of each device's part
    whole = xs.disable_manual_sharding(largest, ("data", "model"), (8, 6), mesh=mesh()).global_tensor
    parts = x.reshape(2, 4, 2, 3)
    expected = (parts - parts.amax((1, 3), keepdim=True)).reshape(8, 6)
    torch.testing.assert_close(whole.cpu(), expected)
    (whole * torch.arange(48.0, device="xla").reshape(8, 6)).sum().backward()
    other = x.clone().requires_grad_()
    parts = other.reshape(2, 4, 2, 3)
    found = (parts - parts.amax((1, 3), keepdim=True)).reshape(8, 6)
    (found * torch.arange(48.0).reshape(8, 6)).sum().backward()
    torch.testing.assert_close(mine.grad.cpu(), other.grad)


def refusals():
    x = torch.ones(8, 6, device="xla")
    with pytest.raises(ValueError, match="there is no mesh"):
        xs.enable_manual_sharding(x, ("data", None))
    with pytest.raises(ValueError, match="an entry for each of 2 dimensions"):
        xs.enable_manual_sharding(x, ("data",), mesh=mesh())
    with pytest.raises(ValueError, match="7 elements cannot be cut into 2 equal parts"):
        xs.enable_manual_sharding(torch.ones(7, device="xla"), ("data",), mesh=mesh())
    with pytest.raises(ValueError, match=r"make a tensor of shape \[16, 6\], not \[8, 6\]"):
        xs.disable_manual_sharding(x, ("data", None), (8, 6), mesh=mesh())


def by_the_names_of_the_module_in_cpp():
    x = torch.arange(8.0, device="xla")
    with pytest.raises(RuntimeError, match="is not sharded"):
        _XLAC._spmd_full_to_shard_shape(x)
    xs.mark_sharding(x, mesh(), ("model",))
    part = _XLAC._spmd_full_to_shard_shape(x)
    assert part.shape == (4,)
    sharding = mesh().get_op_sharding(("model",))
    manual = xs._mark_manual_sharding(part + 1).global_tensor
    whole = _XLAC._spmd_shard_to_full_shape(manual, sharding, (8,), torch.float32)
    assert whole.tolist() == [*range(1, 9)]
    with pytest.raises(RuntimeError, match=r"of shape \[8\], not \[7\]"):
        _XLAC._spmd_shard_to_full_shape(part, sharding, (7,), torch.float32)
    copy = _XLAC.OpSharding([], [], [], xs.ShardingType.REPLICATED)
    assert _XLAC._spmd_shard_to_full_shape(x, copy, (8,), torch.int32).dtype is torch.int32


def tensors_lie_as_each_other():
    x, y = torch.randn(8, 4), torch.randn(8, 4)
    a, b = x.to("xla"), y.to("xla")
    xs.mark_sharding(a, mesh(), ("data", "model"))
    double = j2t_autograd(lambda x: x * 2)(b)
    (made, none), (alike, _) = xs.shard_as((a, None), (double, None))
    made, alike = made + 0, alike + 0
    assert none is None
    torch.testing.assert_close(alike.cpu(), y * 2)
    torch.testing.assert_close(made.cpu(), x)
    assert _XLAC._get_xla_sharding_spec(alike) == _XLAC._get_xla_sharding_spec(made) == "{devices=[2,2]0,1,2,3}"
    assert jax.device_count() >= 1
    with pytest.raises(ValueError, match="two trees of one structure"):
        xs.shard_as((a,), (b, b))


@pytest.mark.parametrize(
    "function",
    [each_device_has_its_part, refusals, by_the_names_of_the_module_in_cpp, tensors_lie_as_each_other],
)
def test_manual(spmd, function):
    spmd(function)
