"""DTensor's functions for shardings within one process."""

from __future__ import annotations

import types

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Partial, Replicate, Shard

from lazy_runtime.torch_xla import _XLAC
from lazy_runtime.torch_xla import runtime as xr
from lazy_runtime.torch_xla.distributed import spmd as xs
from lazy_runtime.torch_xla.distributed.spmd import api


def torchs_mesh(shape=(2, 2), names=("x", "y")) -> types.SimpleNamespace:
    """What the functions read of torch's `DeviceMesh`, which needs process groups."""
    numbers = torch.arange(4).reshape(shape)
    return types.SimpleNamespace(
        mesh=numbers, ndim=len(shape), mesh_dim_names=names, device_type="xla", size=lambda: numbers.numel()
    )


def text(tensor: torch.Tensor) -> str:
    return _XLAC._get_xla_sharding_spec(tensor)


def conversions():
    mesh = api.convert_to_xla_mesh(torchs_mesh())
    assert (mesh.mesh_shape, mesh.axis_names, mesh.numbers) == ((2, 2), ("x", "y"), [0, 1, 2, 3])
    x = torch.ones(4, 8, 8)
    for placements, expected in (
        ([Replicate(), Shard(0)], (1, None, None)),
        ([Shard(2), Shard(0)], (1, None, 0)),
        ([Shard(-1), Shard(-1)], (None, None, (0, 1))),
    ):
        assert api.convert_to_xla_partition_spec(x, placements) == expected
    with pytest.raises(ValueError, match="Unsupported placement type: Partial"):
        api.convert_to_xla_partition_spec(x, [Partial()])
    with pytest.raises(ValueError, match="has none of this number"):
        api.convert_to_xla_partition_spec(x, [Shard(3)])
    small = torchs_mesh()
    small.size = lambda: 2
    with pytest.raises(ValueError, match="expected a mesh of all 4 devices, got one of 2"):
        api.convert_to_xla_mesh(small)


def tensors():
    x = torch.randn(4, 6)
    found = xs.xla_distribute_tensor(x, torchs_mesh(), [Shard(0), Replicate()])
    assert text(found) == "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}"
    assert found.placements == (Shard(0), Replicate())
    torch.testing.assert_close(found.global_tensor.cpu(), x)
    assert text(xs.xla_distribute_tensor(x, torchs_mesh())) == "{replicated}"
    other = found.redistribute(xs.Mesh(range(4), (2, 2)), [Replicate(), Shard(1)])
    assert text(other) == "{devices=[1,2,2]0,2,1,3 last_tile_dim_replicate}"
    assert (other.placements, other.partition_spec) == ((Replicate(), Shard(1)), (None, 1))
    torch.testing.assert_close(other.global_tensor.cpu(), x)
    assert text(found).startswith("{devices=[2,1,2]")
    mesh = xs.Mesh(range(4), (2, 2))
    for placements, error, match in (
        ([Shard(0)], ValueError, "must match mesh dimensions"),
        ([Partial(), Shard(0)], NotImplementedError, "Partial placement"),
        ([Shard(5), Shard(0)], IndexError, "out of bounds"),
    ):
        with pytest.raises(error, match=match):
            found.redistribute(mesh, placements)
    found.invalidate_spec_cache()
    with pytest.raises(ValueError, match="was not made by mark_sharding"):
        _ = found.placements
    plain = torchs_mesh()
    plain.device_type = "cpu"
    with pytest.raises(ValueError, match="expected a mesh of xla devices, got one of 'cpu'"):
        xs.xla_distribute_tensor(x, plain)
    with pytest.raises(ValueError, match="expected one for each of 2 axes"):
        xs.xla_distribute_tensor(x, torchs_mesh(), [Shard(0)])


def modules():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.randn(2, 4)
    expected = plain(x)
    seen = []

    def take(module, inputs, mesh):
        seen.append(mesh)
        return (inputs[0].to("xla"),)

    model = xs.xla_distribute_module(plain, torchs_mesh(), xs.auto_policy, take, lambda output, mesh: output * 2)
    assert text(model[0].weight) == "{devices=[4,1]0,1,2,3}"
    assert text(model[2].weight) == "{devices=[1,4]0,1,2,3}"
    assert text(model[2].bias) == "{replicated}"
    torch.testing.assert_close(model(x).cpu(), expected * 2)
    assert len(seen) == 1

    names = []
    xs.xla_distribute_module(nn.Linear(2, 2), None, lambda name, module, mesh: names.append(name))
    assert names == [""]
    with pytest.raises(ValueError, match="input_fn: expected a function of the module, a value and the mesh"):
        xs.xla_distribute_module(nn.Linear(2, 2), None, None, lambda x: x)
    api.auto_policy("", nn.Linear(4, 4).to("xla"), None)


def decorator():
    assert api.with_xla(lambda value: (value, xr.is_spmd()))(1) == (1, True)
    assert api.log.name.endswith("api")


@pytest.mark.parametrize("function", [conversions, tensors, modules, decorator])
def test_api(spmd, function):
    spmd(function)
