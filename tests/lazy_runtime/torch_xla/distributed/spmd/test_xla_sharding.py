"""`mark_sharding` and its like: where the parts of a tensor are, and that nothing else changes."""

from __future__ import annotations

import io
from typing import get_args, get_type_hints

import pytest
import torch
from torch import nn

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.compilation import compiler
from lazy_runtime.tensor.xla_tensor import unwrap
from lazy_runtime.torch_xla import _XLAC
from lazy_runtime.torch_xla import runtime as xr
from lazy_runtime.torch_xla.core import xla_model as xm
from lazy_runtime.torch_xla.distributed import spmd as xs
from lazy_runtime.torch_xla.distributed.spmd import xla_sharding


def mesh() -> xs.Mesh:
    return xs.Mesh(range(4), (2, 2), ("data", "model"))


def parts(tensor: torch.Tensor) -> set[tuple[int, ...]]:
    """The shapes of what the devices have."""
    return {tuple(shard.data.shape) for shard in xs.wrap_as_sharded_tensor(tensor).local_shards}


def text(tensor: torch.Tensor) -> str:
    return _XLAC._get_xla_sharding_spec(tensor)


def one_device_stands_for_all():
    assert xr.is_spmd()
    assert lazy_runtime.devices() == [torch.device("xla:0")]
    assert xm.xla_device() == torch.device("xla:0")
    assert (xr.addressable_device_count(), xr.global_device_count(), xr.world_size()) == (1, 1, 1)
    assert (xr.addressable_runtime_device_count(), xr.global_runtime_device_count()) == (4, 4)
    assert _XLAC._xla_get_all_devices() == ["CPU:0"]
    assert [each["name"] for each in xr.global_runtime_device_attributes()] == [f"CPU:{n}" for n in range(4)]
    with pytest.raises(RuntimeError, match=r"xla:1 does not exist.*stands for all"):
        torch.ones(2, device="xla:1")
    x = torch.ones(3, device="xla")
    assert (parts(x), text(x)) == ({(3,)}, "")
    assert len(unwrap(x).handle.value.array.devices()) == 4
    xm.wait_device_ops()
    _, measured = metrics.snapshot()
    assert measured["ExecuteReplicatedTime"].total == measured["ExecuteTime"].total > 0


def test_one_device_stands_for_all(spmd):
    spmd(one_device_stands_for_all)


def data_moves_at_once():
    plain = torch.randn(8, 6)
    x = plain.to("xla")
    alias = x.view(48)
    version = x._version
    before = metrics.value("ExecuteComputation")
    sharded = xs.mark_sharding(x, mesh(), ("data", None))
    assert metrics.value("ExecuteComputation") == before
    assert x._version == version
    assert isinstance(sharded, xs.XLAShardedTensor)
    assert sharded.global_tensor is x
    assert sharded.sharding_spec == text(x) == "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}"
    assert sharded.sharding_type is xs.ShardingType.PARTIAL
    shards = sharded.local_shards
    assert all(isinstance(shard, xs.XLAShard) for shard in shards)
    assert [shard.shard_device for shard in shards] == [f"CPU:{n}" for n in range(4)]
    assert [shard.replica_id for shard in shards] == [0, 1, 0, 1]
    for shard in shards:
        torch.testing.assert_close(shard.unpadded_data, plain[tuple(shard.indices)], rtol=0, atol=0)
    torch.testing.assert_close(alias.cpu(), plain.view(48), rtol=0, atol=0)
    xs.mark_sharding(x, mesh(), (0, None))  # the same again
    xs.mark_sharding(sharded, mesh(), (("data",), None))
    with pytest.raises(RuntimeError, match=r"shape \[8, 6\].*must be cleared first"):
        xs.mark_sharding(x, mesh(), ("model", None))
    assert xs.clear_sharding(sharded) is x
    assert (text(x), parts(x)) == ("", {(8, 6)})
    forms = {
        ("model", "data"): "{devices=[2,2]0,2,1,3}",
        (("data", "model"), None): "{devices=[4,1]0,1,2,3}",
        (("model", "data"), None): "{devices=[4,1]0,2,1,3}",
        (None, 1): "{devices=[1,2,2]0,2,1,3 last_tile_dim_replicate}",
        (None, None): "{replicated}",
    }
    for spec, form in forms.items():
        xs.mark_sharding(x, mesh(), spec)
        assert text(x) == form
        torch.testing.assert_close((x * 2).cpu(), plain * 2, rtol=0, atol=0)
        xs.clear_sharding(x)


def test_data_moves_at_once(spmd):
    spmd(data_moves_at_once)


def a_pending_result_is_computed_in_parts():
    weight = torch.randn(8, 8) / 8
    x = torch.randn(8, 8)
    compiled = metrics.value("ExecuteComputation")
    w = weight.to("xla").requires_grad_()
    hidden = torch.exp(x.to("xla") @ w)  # exp keeps its result for the backward pass
    same = hidden.detach()
    xs.mark_sharding(hidden, mesh(), ("data", "model"))
    assert "sharding={devices=[2,2]<=[4]}" in _XLAC._get_xla_tensors_hlo([hidden])
    (hidden * hidden).sum().backward()
    lazy_runtime.sync()
    assert metrics.value("ExecuteComputation") == compiled + 1
    assert parts(hidden) == parts(same) == {(4, 4)}
    expected = weight.requires_grad_()
    plain = torch.exp(x @ expected)
    (plain * plain).sum().backward()
    torch.testing.assert_close(hidden.detach().cpu(), plain.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(w.grad.cpu(), expected.grad, rtol=1e-5, atol=1e-4)
    made = torch.zeros(8, 4, device="xla")  # a program without arguments
    xs.mark_sharding(made, mesh(), ("model", "data"))
    alone = torch.ones(3, device="xla")
    lazy_runtime.sync()
    assert (parts(made), parts(alone)) == ({(4, 2)}, {(3,)})


def test_a_pending_result_is_computed_in_parts(spmd):
    spmd(a_pending_result_is_computed_in_parts)


def what_is_written_to_a_marked_tensor_lies_as_it_does():
    torch.manual_seed(0)
    layer = nn.Linear(8, 4).to("xla")
    xs.mark_sharding(layer.weight, mesh(), ("data", "model"))
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
    compiles = []
    for _ in range(4):
        optimizer.zero_grad()
        layer(torch.randn(6, 8, device="xla")).square().sum().backward()
        optimizer.step()
        lazy_runtime.sync()
        compiles.append(metrics.value("UncachedCompile"))
        assert parts(layer.weight) == {(2, 4)}
        assert parts(optimizer.state[layer.weight]["exp_avg"]) == {(2, 4)}
    assert compiles[1] == compiles[-1]
    (program,) = [found for found in compiler._executables.values() if len(found.graph.donated) == 6]
    donated = program.compiled.memory_analysis().alias_size_in_bytes  # of one device
    assert donated == 3 * 4 * (2 * 4) + sum(part.nbytes for part in bias_parts(layer, optimizer))
    with torch.no_grad():
        layer.weight.copy_(torch.ones(4, 8))
        layer(torch.ones(2, 8, device="xla")).tolist()
        assert parts(layer.weight) == {(2, 4)}
        layer.weight.data = torch.zeros(4, 8, device="xla")
        lazy_runtime.sync()
        assert parts(layer.weight) == {(2, 4)}


def bias_parts(layer: nn.Linear, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    state = optimizer.state[layer.bias]
    return [xs.wrap_as_sharded_tensor(x).local_shards[0].data for x in (layer.bias.detach(), *list(state.values())[1:])]

    turned = torch.arange(12.0).reshape(4, 3).to("xla")
    xs.mark_sharding(turned, mesh(), (("data", "model"), None))
    turned.t_().add_(1)  # of whose rows there are three
    assert turned.tolist() == (torch.arange(12.0).reshape(4, 3).t() + 1).tolist()


def test_what_is_written_to_a_marked_tensor_lies_as_it_does(spmd):
    spmd(what_is_written_to_a_marked_tensor_lies_as_it_does)


def state_is_saved_whole_and_loaded_in_parts():
    layer = nn.Linear(8, 4).to("xla")
    xs.mark_sharding(layer.weight, mesh(), ("data", "model"))
    stream = io.BytesIO()
    xm.save(layer.state_dict(), stream)
    saved = torch.load(io.BytesIO(stream.getvalue()))
    assert saved["weight"].device.type == "cpu"
    torch.testing.assert_close(saved["weight"], layer.weight.detach().cpu(), rtol=0, atol=0)
    other = nn.Linear(8, 4).to("xla")
    xs.mark_sharding(other.weight, mesh(), ("model", None))
    other.load_state_dict(saved)
    torch.testing.assert_close(other.weight.detach().cpu(), saved["weight"], rtol=0, atol=0)
    out = other(torch.ones(2, 8, device="xla"))
    torch.testing.assert_close(out.cpu(), torch.ones(2, 8) @ saved["weight"].T + saved["bias"])
    assert parts(other.weight) == {(2, 8)}
    sharded = xs.wrap_as_sharded_tensor(other.weight)
    shards = sharded.local_shards
    for shard in shards:
        shard.data = shard.data * 2
    sharded.load_local_shards_(shards)
    torch.testing.assert_close(other.weight.detach().cpu(), saved["weight"] * 2, rtol=0, atol=0)
    assert parts(other.weight) == {(2, 8)}
    with pytest.raises(RuntimeError, match=r"parts of the shapes \[\(2, 8\)"):
        sharded.load_local_shards_(shards[:3])


def test_state_is_saved_whole_and_loaded_in_parts(spmd):
    spmd(state_is_saved_whole_and_loaded_in_parts)


def a_sharded_tensor_computes_like_the_tensor_that_it_holds():
    plain = torch.randn(4, 4)
    w = torch.randn(4, 4, requires_grad=True)
    x = xs.mark_sharding(plain.to("xla"), mesh(), ("data", None))
    on_xla = w.detach().to("xla").requires_grad_()
    y = torch.relu(x @ on_xla)
    y.sum().backward()
    torch.relu(plain @ w).sum().backward()
    torch.testing.assert_close(on_xla.grad.cpu(), w.grad)
    assert type(y) is torch.Tensor
    assert x.add_(1) is x
    torch.testing.assert_close(x.cpu(), plain + 1)
    assert "XLAShardedTensor" in repr(x)
    assert xs.unwrap_sharded_tensor(x) is x.global_tensor
    assert xs.unwrap_sharded_tensor(on_xla) is on_xla
    assert xs.wrap_if_sharded(x.global_tensor).sharding_spec == x.sharding_spec
    assert type(xs.wrap_if_sharded(on_xla.grad.new_zeros(2))) is torch.Tensor


def test_a_sharded_tensor_computes_like_the_tensor_that_it_holds(spmd):
    spmd(a_sharded_tensor_computes_like_the_tensor_that_it_holds)


def gradients_are_sharded_too():
    x = torch.randn(4, 4, device="xla").requires_grad_()
    y = xs.mark_sharding_with_gradients(x, mesh(), ("data", "model"))
    assert y is not x
    (y * y).sum().backward()
    lazy_runtime.sync()
    assert parts(y) == parts(x.grad) == {(2, 2)}
    torch.testing.assert_close(x.grad.cpu(), 2 * x.detach().cpu())
    layer = nn.Linear(4, 4).to("xla")
    xs.apply_backward_optimization_barrier(layer)
    layer(x).sum().backward()
    torch.testing.assert_close(layer.bias.grad.cpu(), torch.full((4,), 4.0))


def test_gradients_are_sharded_too(spmd):
    spmd(gradients_are_sharded_too)


def what_cannot_be_is_said():
    x = torch.zeros(6, 5, device="xla")
    lazy_runtime.sync()
    cases = {
        ("data",): r"an entry for each of the 2 dimensions of the tensor of shape \[6, 5\], got 1",
        ("rows", None): r"no axis 'rows'; its axes are 'data' \(2\), 'model' \(2\)",
        (2, None): r"no axis 2",
        ("data", 0): "cuts one dimension at most",
    }
    for spec, message in cases.items():
        for tensor in (x, x + 1):  # with data and pending
            with pytest.raises(ValueError, match=message):
                xs.mark_sharding(tensor, mesh(), spec)
            with pytest.raises(ValueError, match=message):
                xs.mark_sharding_with_gradients(tensor, mesh(), spec)
    model = nn.Sequential(nn.Linear(6, 5)).to("xla")
    with pytest.raises(ValueError, match=r"the parameter '0.weight': partition_spec: expected an entry for each"):
        xs.mark_sharding(model[0].weight, mesh(), ("data",))
    with pytest.raises(ValueError, match=r"there is no device 4, this process has 4 \(0 to 3\)"):
        xs.mark_sharding(x, xs.Mesh(range(6), (6,)), (0, None))
    with pytest.raises(ValueError, match="a mesh takes all devices, which are 4"):
        xs.mark_sharding(x, xs.Mesh(range(2), (2,)), (0, None))
    with pytest.raises(ValueError, match=r"the mesh 2x2 of the devices \[0, 3, 1, 2\] cannot be used beside .*2x2 of"):
        xs.mark_sharding(x, xs.Mesh([0, 3, 1, 2], (2, 2)), (0, None))
    with pytest.raises(ValueError, match="expected a tensor on xla, got cpu"):
        xs.mark_sharding(torch.zeros(2), mesh(), ("data",))
    with pytest.raises(ValueError, match="expected a tensor on xla, got cpu"):
        xs.clear_sharding(torch.zeros(2))
    with pytest.raises(NotImplementedError, match="mark_sharding"):
        xr.use_spmd(auto=True)
    assert (x + 1).sum().item() == 30


def test_what_cannot_be_is_said(spmd):
    spmd(what_cannot_be_is_said)


def test_without_use_spmd_it_is_said():
    with pytest.raises(RuntimeError, match="use_spmd"):
        xs.mark_sharding(torch.zeros(4, device="xla"), xs.Mesh([0], (1,)), (0,))


def test_types_for_annotations():
    assert get_type_hints(xs.mark_sharding)["partition_spec"] == xla_sharding.PartitionSpec
    hints, trees = get_type_hints(xs.shard_as), (xla_sharding.PyTreeA, xla_sharding.PyTreeB)
    assert (hints["a"], hints["b"]) == trees
    assert get_args(hints["return"]) == trees
