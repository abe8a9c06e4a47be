"""Dimensions that the devices cannot share equally."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import lazy_runtime
from lazy_runtime.torch_xla import _XLAC
from lazy_runtime.torch_xla.distributed import spmd as xs
from lazy_runtime.torch_xla.distributed.parallel_loader import MpDeviceLoader


def form(tensor: torch.Tensor) -> str:
    return xs.wrap_as_sharded_tensor(tensor).sharding_spec


def marks_and_values() -> None:
    mesh = xs.Mesh(range(4), (2, 2), ("data", "model"))
    data = torch.arange(35.0).reshape(7, 5)
    for is_pending in (False, True):
        x = data.to("xla")
        y = x * 2 if is_pending else x
        expected = data * 2 if is_pending else data
        xs.mark_sharding(y, mesh, (("data", "model"), None))
        assert form(y) == "{devices=[4,1]0,1,2,3}"
        torch.testing.assert_close((y + 1).cpu(), expected + 1)
        assert torch.equal(y.cpu(), expected)
        assert form(y) == "{devices=[4,1]0,1,2,3}"
        y.add_(1)
        assert torch.equal(y.cpu(), expected + 1)
        assert form(y) == "{devices=[4,1]0,1,2,3}"
        assert torch.equal(xs.clear_sharding(y).cpu(), expected + 1)
    partly = torch.arange(24.0).reshape(6, 4).to("xla")
    sharded = xs.mark_sharding(partly, mesh, (("data", "model"), None))
    assert [tuple(shard.data.shape) for shard in sharded.local_shards] == [(2, 4)] * 4
    late = torch.ones(3, device="xla") + 1
    assert torch.equal(xs.mark_sharding_with_gradients(late, mesh, ("data",)).cpu(), torch.full((3,), 2.0))


def test_marks_and_values(spmd):
    spmd(marks_and_values)


def parts_and_writes() -> None:
    mesh = xs.get_1d_mesh("data")
    data = torch.arange(1.0, 6.0)
    sharded = xs.mark_sharding(data.to("xla"), mesh, ("data",))
    shards = sharded.local_shards
    assert [shard.data.tolist() for shard in shards] == [[1, 2], [3, 4], [5, 0], [0, 0]]
    assert [shard.indices for shard in shards] == [[slice(start, end, 1)] for start, end in _BOUNDS]
    assert [shard.unpadded_data.tolist() for shard in shards] == [[1, 2], [3, 4], [5], []]
    for shard in shards:
        shard.unpadded_data = -shard.unpadded_data
    sharded.load_local_shards_(shards)
    assert torch.equal(sharded.cpu(), -data)
    assert form(sharded.global_tensor) == "{devices=[4]0,1,2,3}"
    with pytest.raises(RuntimeError, match=r"has parts of the shapes \[\(2,\), \(2,\), \(2,\), \(2,\)\]"):
        sharded.load_local_shards_(shards[:3])
    whole = xs.mark_sharding(data.to("xla"), mesh, (None,))
    with pytest.raises(RuntimeError, match="is on each device in full"):
        whole.load_local_shards_(whole.local_shards)
    sharding = mesh.get_op_sharding((0,))
    made = _XLAC._global_tensor_from_cpu_shards([torch.arange(2.0) + 2 * number for number in range(4)], sharding, (7,))
    assert torch.equal(made.cpu(), torch.arange(7.0))
    for size in (4, 9):  # four parts of it would have one element, or three
        with pytest.raises(RuntimeError, match=rf"make a tensor of shape \[8\], not \[{size}\]"):
            _XLAC._global_tensor_from_cpu_shards([torch.zeros(2)] * 4, sharding, (size,))


_BOUNDS = (0, 2), (2, 4), (4, 5), (5, 5)


def test_parts_and_writes(spmd):
    spmd(parts_and_writes)


def training(mode: str) -> None:
    mesh = xs.Mesh(range(4), (2, 2), ("data", "model"))
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Embedding(13, 6), nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 13))
    model = copy.deepcopy(plain).to("xla")
    xs.mark_sharding(model[0].weight, mesh, ("model", None))
    xs.mark_sharding(model[1].weight, mesh, ("model", None))
    xs.mark_sharding(model[3].weight, mesh, (("data", "model"), None))
    rows = [torch.randint(13, (count, 3)) for count in (8, 8, 5)]
    loader = MpDeviceLoader(rows, "xla", input_sharding=xs.ShardingSpec(mesh, ("data", None)))

    def losses(model, batches):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)

        def step(batch):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())
            loss.backward()
            optimizer.step()
            return loss.detach()

        if mode == "openxla" and next(model.parameters()).device.type == "xla":
            step = torch.compile(step, backend="openxla")
        found = []
        for batch in batches:
            found.append(step(batch))
            lazy_runtime.sync()
        return [loss.item() for loss in found]

    torch._dynamo.reset()
    torch.testing.assert_close(losses(model, loader), losses(plain, rows), rtol=1e-5, atol=1e-6)
    for mine, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
    assert form(model[3].weight) == "{devices=[4,1]0,1,2,3}"


@pytest.mark.parametrize("mode", ["lazy", "openxla"])
def test_training(spmd, mode):
    spmd(training, mode)
