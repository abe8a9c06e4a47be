"""Two processes with two devices each, over all of which programs are sharded."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.distributed.checkpoint import FileSystemReader

import lazy_runtime
from lazy_runtime.torch_xla import runtime as xr
from lazy_runtime.torch_xla.core import xla_model as xm
from lazy_runtime.torch_xla.distributed import spmd as xs
from lazy_runtime.torch_xla.distributed import xla_backend as xla_backend  # for init_method="xla://"
from lazy_runtime.torch_xla.distributed import xla_multiprocessing as xmp
from lazy_runtime.torch_xla.distributed.parallel_loader import MpDeviceLoader
from lazy_runtime.torch_xla.experimental.distributed_checkpoint import CheckpointManager
from lazy_runtime.torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel
from lazy_runtime.torch_xla.utils import dlpack
from tests.lazy_runtime.ranks import Ranks
from tests.lazy_runtime.torch_xla.distributed.spmd.test_loading import form
from tests.lazy_runtime.torch_xla.distributed.spmd.test_spmd_compiled import eagerly, inference, shardings_within
from tests.lazy_runtime.torch_xla.distributed.spmd.test_spmd_operators import draws, what_only_torch_computes
from tests.lazy_runtime.torch_xla.distributed.spmd.test_spmd_training import (
    MODES,
    Net,
    images,
    mnist,
    one_device,
    train,
)


def begin() -> None:
    """What a script of each host says first. The ranks of `spawn` have a device each, if they do not say otherwise."""
    os.environ["CPU_NUM_DEVICES"] = "2"
    warnings.simplefilter("error")
    for message in (
        ".torch.jit.script_method. is deprecated",
        "The .grad attribute of a Tensor that is not a leaf",
        ".*should not be instantiated. Methods on autograd functions",
    ):
        warnings.filterwarnings("ignore", message)  # which Dynamo gives rise to
    torch.manual_seed(0)
    xr.use_spmd()


@pytest.fixture(scope="module")
def hosts() -> Iterator[Callable[..., list[Any]]]:
    """Calls functions in two processes with two devices each."""
    ranks = Ranks(2)
    ranks(begin)
    yield ranks
    ranks.close()


def share(tensor: torch.Tensor) -> torch.Tensor:
    """This process's rows."""
    return tensor.chunk(xr.process_count())[xr.process_index()]


# ---- devices and values


def counts() -> dict[str, Any]:
    return {
        "devices": xr.global_runtime_device_count(),
        "own devices": xr.addressable_runtime_device_count(),
        "names": [each["name"] for each in xr.global_runtime_device_attributes()],
        "replicas": (xr.world_size(), xr.global_ordinal(), xr.local_ordinal(), xr.global_device_count()),
        "processes": (xr.process_count(), xr.process_index()),
        "xla": list(map(str, lazy_runtime.devices())),
    }


def test_devices_of_all_processes(hosts):
    for rank, found in enumerate(hosts(counts)):
        assert found == {
            "devices": 4,
            "own devices": 2,
            "names": [f"CPU:{number}" for number in range(4)],
            "replicas": (1, 0, 0, 1),
            "processes": (2, rank),
            "xla": ["xla:0"],
        }


def values() -> None:
    mesh = xs.Mesh(range(4), (2, 2), ("data", "model"))
    data = torch.arange(32.0).reshape(8, 4)
    x, copies = data.to("xla"), data.to("xla")
    xs.mark_sharding(x, mesh, ("data", "model"))
    assert form(x) == "{devices=[2,2]0,1,2,3}"
    assert (x @ copies.t()).sum().item() == (data @ data.t()).sum().item()
    pending = x * 2
    xs.mark_sharding(pending, mesh, ("model", None))
    assert torch.equal(pending.cpu(), data * 2)
    assert x[3].tolist() == data[3].tolist()
    assert torch.equal(torch.from_dlpack(dlpack.to_dlpack(x)), data)
    turned = x.t()
    lazy_runtime.sync()
    assert torch.equal(turned.cpu(), data.t())
    halves = data.to(torch.bfloat16).to("xla")
    xs.mark_sharding(halves, mesh, (("data", "model"), None))
    assert torch.equal((halves + 1).cpu(), data.to(torch.bfloat16) + 1)
    assert torch.equal(torch.randperm(64, device="xla").cpu().sort().values, torch.arange(64))
    stream = io.BytesIO()
    torch.save({"x": x}, stream)
    stream.seek(0)
    assert torch.equal(torch.load(stream)["x"].cpu(), data)
    xs.clear_sharding(x)
    assert form(x) == ""
    assert torch.equal(x.cpu(), data)


def test_values_are_whole_in_every_process(hosts):
    hosts(values)


def shards() -> list[Any]:
    mesh = xs.Mesh(range(4), (4,), ("rows",))
    x = torch.arange(8.0).to("xla")
    marked = xs.mark_sharding(x, mesh, ("rows",))
    found = [(each.shard_device, each.indices, each.data.tolist()) for each in marked.local_shards]
    for each in marked.local_shards:
        each.data *= 10
    written = marked.local_shards
    for each in written:
        each.data *= 10
    marked.load_local_shards_(written)
    assert x.tolist() == [10.0 * n for n in range(8)]
    return found


def test_a_process_has_the_shards_of_its_devices(hosts):
    first, second = hosts(shards)
    assert first == [("CPU:0", [slice(0, 2, 1)], [0, 1]), ("CPU:1", [slice(2, 4, 1)], [2, 3])]
    assert second == [("CPU:2", [slice(4, 6, 1)], [4, 5]), ("CPU:3", [slice(6, 8, 1)], [6, 7])]


def meshes() -> None:
    mesh = xs.HybridMesh(ici_mesh_shape=(1, 2), dcn_mesh_shape=(2, 1), axis_names=("data", "model"))
    assert mesh.get_logical_mesh().tolist() == [[0, 1], [2, 3]]
    mixed = xs.HybridMesh(ici_mesh_shape=(2,), dcn_mesh_shape=(2,))
    assert mixed.get_logical_mesh().tolist() == [0, 1, 2, 3]
    columns = xs.HybridMesh(ici_mesh_shape=(2, 1), dcn_mesh_shape=(1, 2))
    assert columns.get_logical_mesh().tolist() == [[0, 2], [1, 3]]
    with pytest.raises(ValueError, match=r"a place for each of 2 processes along 1 axes, as \(2,\), got \(1,\)"):
        xs.HybridMesh(ici_mesh_shape=(4,))
    with pytest.raises(ValueError, match="there is no device 4, all processes together have 4"):
        xs.mark_sharding(torch.zeros(5, device="xla"), xs.Mesh(range(5), (5,)), (0,))


def test_meshes_of_processes(hosts):
    hosts(meshes)


# ---- operators and programs


def seeded(function: Callable[..., Any], *arguments: Any) -> Any:
    torch.manual_seed(0)
    return function(*arguments)


def data_dependent() -> None:
    data = torch.tensor([3.0, 0.0, 1.0, 0.0, 2.0, 2.0, 0.0, 5.0])
    x = data.to("xla")
    xs.mark_sharding(x, xs.get_1d_mesh("data"), ("data",))
    assert torch.equal(x.nonzero().cpu(), data.nonzero())
    assert torch.equal(x.unique().cpu(), data.unique())
    with pytest.raises(IndexError, match="index 9 is out of bounds for dimension 0 with size 8"):
        x[torch.tensor([9], device="xla")].cpu()
    assert torch.equal(x.cpu(), data)


def test_operators_whose_results_depend_on_data(hosts):
    hosts(data_dependent)


@pytest.mark.parametrize("road", ["bridge", "callback"])
def test_what_only_torch_computes(hosts, road):
    hosts(what_only_torch_computes, road)


def test_random_numbers_are_those_of_one_device(hosts):
    assert hosts(draws) == [draws()] * 2


def test_compiled_and_eagerly(hosts):
    hosts(seeded, inference)
    hosts(seeded, shardings_within, True)
    hosts(seeded, eagerly)


# ---- batches and training


def batches() -> None:
    rows = torch.arange(24.0).reshape(8, 3)
    mesh = xs.Mesh(range(4), (2, 2), ("hosts", "own"))
    parts = xs.ShardingSpec(mesh, (("hosts", "own"), None), minibatch=True)
    batch = [share(rows), share(rows[:, 0]), torch.tensor(7)]
    ((whole, column, number),) = MpDeviceLoader([batch], "xla", input_sharding=parts)
    assert (form(whole), form(column), form(number)) == ("{devices=[4,1]0,1,2,3}", "{devices=[4]0,1,2,3}", "")
    assert torch.equal(whole.cpu(), rows)
    assert torch.equal(column.cpu(), rows[:, 0])
    assert number.item() == 7
    each = {"x": xs.ShardingSpec(mesh, ("hosts", None), minibatch=True), "y": None}
    (named,) = MpDeviceLoader([{"x": share(rows), "y": rows}], "xla", input_sharding=each)
    assert form(named["x"]) == "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}"
    assert torch.equal(named["x"].cpu(), rows)
    assert torch.equal(named["y"].cpu(), rows)
    (all_of_it,) = MpDeviceLoader([rows], "xla", input_sharding=xs.ShardingSpec(mesh, ("own", None)))
    assert torch.equal(all_of_it.cpu(), rows)
    turned = torch.empty(3, 4).t()  # rows of another stride
    turned.copy_(share(rows))
    (sent,) = xm.send_cpu_data_to_device([turned], "xla", parts)
    assert torch.equal(sent.cpu(), rows)
    with pytest.raises(ValueError, match="Of 8 rows process 0 has 0 to 7, process 1 0 to 7: cut the batch along"):
        xm.send_cpu_data_to_device([share(rows)], "xla", xs.ShardingSpec(mesh, ("own", None), minibatch=True))
    spec = xs.ShardingSpec(mesh, (("own", "hosts"), None), minibatch=True)
    with pytest.raises(ValueError, match="process 0 has 0 to 1 and 4 to 5, process 1 2 to 3 and 6 to 7"):
        xm.send_cpu_data_to_device([share(rows)], "xla", spec)
    with pytest.raises(ValueError, match=r"of the batch of shape \[6, 3\] cannot be cut.*6 elements, which 4 devices"):
        xm.send_cpu_data_to_device([rows[:3]], "xla", parts)


def test_each_process_loads_its_part_of_a_batch(hosts):
    hosts(batches)


def data_parallel(mode: str) -> list[float]:
    torch.manual_seed(0)
    model = Net().to("xla")
    sharding = xs.ShardingSpec(xs.get_1d_mesh("data"), ("data", None, None, None), minibatch=True)
    parts = [(share(inputs), share(targets)) for inputs, targets in images()]
    torch.manual_seed(1)  # of dropout
    return train(
        model,
        MpDeviceLoader(parts, "xla", input_sharding=sharding),
        nn.functional.nll_loss,
        mode,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.5),
    )


@pytest.mark.parametrize("mode", MODES[:2])
def test_data_parallel_training(hosts, mode):
    expected = one_device(mnist, "one device", "lazy")
    assert expected[-1] < expected[0]
    for losses in hosts(data_parallel, mode):
        torch.testing.assert_close(losses, expected, rtol=0, atol=1e-5)


def perceptron(cut: bool) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 6)).to("xla")
    sharding = None
    if cut:  # the parts of a weight lie in several processes, those of a batch in one
        mesh = xs.Mesh([0, 2, 1, 3], (2, 2), ("data", "model"))
        xs.mark_sharding(model[0].weight, mesh, ("model", None))
        xs.mark_sharding(model[2].weight, mesh, (None, "model"))
        sharding = xs.ShardingSpec(mesh, ("data", None))
    data = [(torch.randn(8, 6), torch.randn(8, 6)) for _ in range(4)]
    loader = MpDeviceLoader(data, "xla", input_sharding=sharding)
    losses = train(
        model, loader, nn.functional.mse_loss, "lazy", lambda parameters: torch.optim.AdamW(parameters, lr=0.01)
    )
    if cut:
        assert form(model[0].weight) == "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}"
    return losses


def test_weights_whose_parts_lie_in_several_processes(hosts):
    expected = perceptron(cut=False)
    for losses in hosts(perceptron, True):
        torch.testing.assert_close(losses, expected, rtol=0, atol=1e-5)


def fully_sharded() -> None:
    mesh = xs.get_1d_mesh("fsdp")
    model = SpmdFullyShardedDataParallel(nn.Linear(8, 4), mesh=mesh).to("xla")
    weight = next(model.parameters())
    assert form(weight).startswith("{devices=[")
    before = weight.detach().cpu()
    model(torch.ones(4, 8, device="xla")).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    torch.testing.assert_close(weight.detach().cpu(), before - 2)


def test_fully_sharded_data_parallel(hosts):
    hosts(seeded, fully_sharded)


# ---- checkpoints, and what the hosts do among themselves


def checkpoint(path: str) -> None:
    dist.init_process_group("gloo", init_method="xla://")
    assert (dist.get_rank(), dist.get_world_size()) == (xr.process_index(), 2)
    mesh = xs.get_1d_mesh("data")
    saved = torch.arange(32.0).reshape(8, 4)
    x = saved.to("xla")
    xs.mark_sharding(x, mesh, ("data", None))
    manager = CheckpointManager(os.path.join(path, "steps"), save_interval=1)
    assert manager.save_async(3, {"x": x})
    x += 1
    lazy_runtime.sync()
    manager.join()
    assert manager.all_steps() == [3]
    written = FileSystemReader(os.path.join(path, "steps", "3")).read_metadata().state_dict_metadata["x"].chunks
    assert sorted(chunk.offsets[0] for chunk in written) == [0, 2, 4, 6]  # by each process those of its devices
    manager.restore(3, {"x": x})
    assert form(x) == "{devices=[4,1]0,1,2,3}"
    assert torch.equal(x.cpu(), saved)
    columns = torch.zeros(8, 4, device="xla")
    xs.mark_sharding(columns, mesh, (None, "data"))
    whole = torch.zeros(8, 4, device="xla")
    for other in (columns, whole):
        manager.restore(3, {"x": other})
        assert torch.equal(other.cpu(), saved)
    xm.save({"x": x}, os.path.join(path, "x.pt"))
    xm.rendezvous("saved")
    assert torch.equal(torch.load(os.path.join(path, "x.pt"))["x"], saved)
    with pytest.raises(NotImplementedError, match=r"XLA reduces over the devices of all.*init_process_group\(.gloo."):
        dist.new_group(backend="xla")
    dist.destroy_process_group()


def test_checkpoints(hosts, tmp_path):
    hosts(checkpoint, str(tmp_path))


# ---- what is not alike


def unlike(index: int) -> None:
    begin()
    torch.manual_seed(index)  # so the parameters differ
    model = nn.Linear(4, 4).to("xla")
    x = torch.ones(4, 4).to("xla")
    xs.mark_sharding(x, xs.get_1d_mesh("data"), ("data", None))
    model(x).sum().item()


def test_processes_that_have_put_different_values_there_are_told_so():
    told = r"(?s)MismatchError.*rank 0: program\(t_copy, addmm, sum\).*of tensors and random seeds that are the same"
    with pytest.raises(torch.multiprocessing.ProcessRaisedException, match=told):
        xmp.spawn(unlike, nprocs=2)
