"""`SpmdFullyShardedDataParallel`: which parameters are cut how, and what it refuses."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

from lazy_runtime.torch_xla.distributed import spmd as xs
from lazy_runtime.torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 12), nn.Tanh())
        self.last = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.inner(x))


class Pair(Net):
    def forward(self, x: torch.Tensor):
        return super().forward(x), x


def forms(model: nn.Module) -> list[str]:
    return [xs.wrap_as_sharded_tensor(parameter).sharding_spec for parameter in model.parameters()]


def parameters_in_parts() -> None:
    mesh = xs.Mesh(range(4), (2, 2), ("data", "fsdp"))
    x = torch.randn(8, 8)
    plain = Net()
    xs.set_global_mesh(mesh)
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=50)
    for options in ({"auto_wrap_policy": policy}, {"extra_data_axis": "data"}, {"shard_output": lambda y, mesh: None}):
        copy = Net()
        copy.load_state_dict(plain.state_dict())
        model = FSDP(copy, **options)
        half = "last_tile_dim_replicate}"
        assert forms(model) == [
            f"{{devices=[2,1,2]0,2,1,3 {half}",
            f"{{devices=[2,2]0,2,1,3 {half}",
            f"{{devices=[1,2,2]0,2,1,3 {half}",
            "{replicated}",
        ]
        out = model(x.to("xla"))
        torch.testing.assert_close(out.cpu(), plain(x), rtol=1e-4, atol=1e-5)
        if "shard_output" not in options:
            both = "extra_data_axis" in options
            rows = "{devices=[4,1]0,1,2,3}" if both else f"{{devices=[2,1,2]0,2,1,3 {half}"
            assert xs.wrap_as_sharded_tensor(out).sharding_spec == rows
        assert isinstance(model.inner[0], FSDP) == ("auto_wrap_policy" in options)
        assert model.module is copy
        with pytest.raises(RuntimeError, match="already wrapped"):
            FSDP(model)
    with pytest.warns(RuntimeWarning, match="the first tensor alone is sharded"):
        out, given = FSDP(Pair())(x.to("xla"))
    assert xs.wrap_as_sharded_tensor(out).sharding_spec == f"{{devices=[2,1,2]0,2,1,3 {half}"
    assert torch.equal(given.cpu(), x)
    assert FSDP(nn.Linear(8, 8))(x[:3].to("xla")).shape == (3, 8)  # which two cannot share
    with pytest.raises(ValueError, match=r"axis named 'fsdp', its axes are \('x',\)"):
        FSDP(Net(), mesh=xs.get_1d_mesh("x"))
    with pytest.raises(ValueError, match="The provided rows axis is not in the mesh"):
        FSDP(Net(), extra_data_axis="rows")
    with pytest.raises(RuntimeError, match="ModuleList has no forward"):
        FSDP(nn.ModuleList([Net()]))
    xs.set_global_mesh(None)
    with pytest.raises(ValueError, match="set_global_mesh"):
        FSDP(Net())


def test_parameters_in_parts(spmd):
    spmd(parameters_in_parts)
