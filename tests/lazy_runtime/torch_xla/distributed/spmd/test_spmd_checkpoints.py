"""Tensors that are saved in the parts that they are in, and loaded into others."""

from __future__ import annotations

import contextlib
import functools
import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
import torch.utils._pytree as pytree
from torch import nn
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.torch_xla.distributed import spmd as xs
from lazy_runtime.torch_xla.experimental import distributed_checkpoint as xc

Cuts = tuple[Any, ...]


def mesh() -> xs.Mesh:
    return xs.Mesh(range(4), (2, 2), ("data", "model"))


def on_xla(plain: torch.Tensor, cuts: Cuts | None) -> torch.Tensor:
    tensor = plain.to("xla")
    if cuts is not None:
        xs.mark_sharding(tensor, mesh(), cuts)
    return tensor


def parts(tensor: torch.Tensor) -> set[tuple[int, ...]]:
    """The shapes of what the devices have."""
    return {tuple(shard.data.shape) for shard in xs.wrap_as_sharded_tensor(tensor).local_shards}


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Without torch's warning where there are no other ranks."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def save(state: dict[str, Any], folder: str) -> None:
    with alone():
        dcp.save(state, storage_writer=FileSystemWriter(folder), planner=xc.SPMDSavePlanner())


def load(state: dict[str, Any], folder: str) -> None:
    with alone():
        dcp.load(state, storage_reader=FileSystemReader(folder), planner=xc.SPMDLoadPlanner())


def written(folder: str) -> dict[str, list[tuple[int, ...]]]:
    """Where the parts of each tensor on the disk begin."""
    found: Any = FileSystemReader(folder).read_metadata()
    assert len(found.storage_data) == sum(
        len(getattr(each, "chunks", [None])) for each in found.state_dict_metadata.values()
    )
    return {
        name: sorted(tuple(chunk.offsets) for chunk in each.chunks)
        for name, each in found.state_dict_metadata.items()
        if hasattr(each, "chunks")
    }


SHARDINGS: dict[str, Cuts | None] = {
    "tiles": ("data", "model"),
    "rows": ("model", None),
    "columns": (None, ("model", "data")),
    "copies": (None, None),
    "unmarked": None,
}


def parts_are_saved_once_and_loaded_into_others(folder: str) -> None:
    plain = {name: torch.randn(8, 12) for name in SHARDINGS}
    state: dict[str, Any] = {name: on_xla(plain[name], cuts) for name, cuts in SHARDINGS.items()}
    state["tiles"] = xs.wrap_as_sharded_tensor(state["tiles"])
    state["pending"] = on_xla(plain["rows"], ("data", None)) * 2
    save({**state, "cpu": plain["tiles"], "step": 3}, folder)
    assert written(folder) == {
        "tiles": [(0, 0), (0, 6), (4, 0), (4, 6)],
        "rows": [(0, 0), (4, 0)],
        "columns": [(0, 0), (0, 3), (0, 6), (0, 9)],
        "copies": [(0, 0)],
        "unmarked": [(0, 0)],
        "pending": [(0, 0), (4, 0)],
        "cpu": [(0, 0)],
    }
    for cuts in SHARDINGS.values():
        found: dict[str, Any] = {name: on_xla(torch.zeros(8, 12), cuts) for name in SHARDINGS}
        shapes = {name: parts(tensor) for name, tensor in found.items()}
        before = dict(found)
        found = {**found, "step": 0, "cpu": torch.zeros(8, 12)}
        if cuts is not None:
            found["tiles"] = xs.wrap_as_sharded_tensor(found["tiles"])
        load(found, folder)
        assert found["step"] == 3
        assert torch.equal(found["cpu"], plain["tiles"])
        for name, tensor in before.items():
            assert torch.equal(tensor.cpu(), plain[name])
            assert parts(tensor) == shapes[name]
    into_cpu = {name: torch.zeros(8, 12) for name in [*SHARDINGS, "pending"]}
    with alone():
        dcp.load(into_cpu, checkpoint_id=folder)  # by torch's own planner
    assert all(torch.equal(into_cpu[name], plain[name]) for name in SHARDINGS)
    assert torch.equal(into_cpu["pending"], plain["rows"] * 2)


def test_parts_are_saved_once_and_loaded_into_others(spmd, tmp_path):
    spmd(parts_are_saved_once_and_loaded_into_others, str(tmp_path))


def dtypes_and_sizes(folder: str) -> None:
    plain: dict[str, torch.Tensor] = {
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "long": torch.arange(8) * 2**40,
        "half": torch.randn(8).bfloat16(),
        "bool": torch.arange(8) % 3 == 0,
        "double": torch.randn(8, dtype=torch.float64),
        "many": torch.randn(4, 2, 8, 2),
    }
    cuts = {"many": ("data", None, "model", None)}
    save({name: on_xla(x, cuts.get(name, ("data",) if x.dim() == 1 else None)) for name, x in plain.items()}, folder)
    other = {"many": ("model", "data", None, None)}
    found = {
        name: on_xla(torch.zeros_like(x), other.get(name, (("model", "data"),) if x.dim() == 1 else None))
        for name, x in plain.items()
    }
    load(found, folder)
    for name, x in plain.items():
        assert found[name].dtype == x.dtype
        assert torch.equal(found[name].cpu(), x)
    wider = {"half": on_xla(torch.zeros(8), ("model",))}
    load(wider, folder)
    assert torch.equal(wider["half"].cpu(), plain["half"].float())


def test_dtypes_and_sizes(spmd, tmp_path):
    spmd(dtypes_and_sizes, str(tmp_path))


def what_does_not_fit(folder: str) -> None:
    save({"x": on_xla(torch.zeros(8, 4), ("data", None))}, folder)
    with pytest.raises(dcp.CheckpointException, match=r"Size mismatch .*\[8, 4\].*\[4, 8\]"):
        load({"x": on_xla(torch.zeros(4, 8), ("data", None))}, folder)
    with pytest.raises(dcp.CheckpointException, match=r"Missing key in checkpoint state_dict: y"):
        load({"y": on_xla(torch.zeros(8, 4), ("data", None))}, folder)


def test_what_does_not_fit(spmd, tmp_path):
    spmd(what_does_not_fit, str(tmp_path))


def trained(weights: Cuts, steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = nn.Linear(8, 4, bias=False).to("xla")
    xs.mark_sharding(model.weight, mesh(), weights)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(steps):
        train(model, optimizer, step)
    return model, optimizer


def train(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(step)).to("xla")
    model(x).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    lazy_runtime.sync()


def training_goes_on_with_other_shardings(folder: str) -> None:
    model, optimizer = trained(("data", "model"), 2)
    checkpoints = xc.CheckpointManager(folder, 1, chkpt_on_preemption=False)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    metrics.clear()
    checkpoints.save(1, state)
    checkpoints.save_async(2, pytree.tree_map_only(torch.Tensor, xs.wrap_if_sharded, state))
    train(model, optimizer, 2)  # which would write to the buffers, if nobody kept them
    assert metrics.value("ExecuteComputation") <= 2
    checkpoints.join()
    expected = [each.detach().cpu() for each in model.parameters()]
    for step in checkpoints.all_steps():
        moments = written(str(Path(folder) / str(step)))["optimizer.state.0.exp_avg"]
        assert moments == [(0, 0), (0, 4), (2, 0), (2, 4)]
        model, optimizer = trained((None, ("model", "data")), 0)
        xc.prime_optimizer(optimizer)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        checkpoints.restore(step, state)
        optimizer.load_state_dict(state["optimizer"])
        assert parts(model.weight) == {(4, 2)}
        train(model, optimizer, 2)
        assert parts(model.weight) == {(4, 2)}
        for mine, theirs in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(mine.detach().cpu(), theirs)
    assert checkpoints.all_steps() == [1, 2]


def test_training_goes_on_with_other_shardings(spmd, tmp_path):
    spmd(training_goes_on_with_other_shardings, str(tmp_path))


class Recorded:
    """Notes which methods of a planner `torch.distributed.checkpoint` calls, and what they give.

    Attributes:
        calls: name of a method → the arguments and the result of each call.
    """

    def __init__(self, planner: Any):
        self.calls: dict[str, list[tuple[tuple[Any, ...], Any]]] = {}
        for name in METHODS:
            if hasattr(planner, name):
                setattr(planner, name, self._noting(name, getattr(planner, name)))

    def _noting(self, name: str, method: Any) -> Any:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            kept = result.clone() if isinstance(result, torch.Tensor) else result
            self.calls.setdefault(name, []).append(((*args, *kwargs.values()), kept))
            return result

        return call


METHODS = {
    "set_up_planner",
    "create_local_plan",
    "create_global_plan",
    "finish_plan",
    "resolve_data",
    "lookup_object",
    "transform_object",
    "load_bytes",
    "resolve_tensor",
    "lookup_tensor",
    "transform_tensor",
    "commit_tensor",
}


def index_of(item: Any) -> tuple[str, tuple[int, ...] | None]:
    index = getattr(item, "dest_index", None) or item.index
    return index.fqn, None if index.offset is None else tuple(index.offset)


def plans_and_data(folder: str) -> None:
    plain = torch.arange(32.0).reshape(8, 4)
    state = {"model": {"x": on_xla(plain, ("data", None)), "cpu": plain[0]}, "step": 3}
    planner = xc.SPMDSavePlanner()
    saving = Recorded(planner)
    with alone():
        dcp.save(state, storage_writer=FileSystemWriter(folder), planner=planner)
    written_items = {("model.x", (0, 0)), ("model.x", (4, 0)), ("model.cpu", (0,)), ("step", None)}
    ((_, local),) = saving.calls["create_local_plan"]
    assert {index_of(item) for item in local.items} == written_items
    (((plans,), (global_plans, metadata)),) = saving.calls["create_global_plan"]
    assert plans == [local]
    assert metadata.planner_data == {"model.x": ("model", "x"), "model.cpu": ("model", "cpu"), "step": ("step",)}
    assert [tuple(chunk.sizes) for chunk in metadata.state_dict_metadata["model.x"].chunks] == [(4, 4), (4, 4)]
    (((given,), finished),) = saving.calls["finish_plan"]
    assert given is finished
    assert given.items == global_plans[0].items
    resolved = {index_of(item): data for (item,), data in saving.calls["resolve_data"]}
    found = {
        (index.fqn, index.offset and tuple(index.offset)): each for (index,), each in saving.calls["lookup_object"]
    }
    assert resolved.keys() == found.keys() == written_items
    for first in (0, 4):
        assert torch.equal(resolved["model.x", (first, 0)], plain[first : first + 4])
        assert found["model.x", (first, 0)].device.type == "cpu"
    assert found["step", None] == 3
    assert torch.load(io.BytesIO(resolved["step", None].getvalue())) == 3
    transformed = {index_of(item): given for (item, given), _ in saving.calls["transform_object"]}
    assert torch.equal(transformed["model.x", (4, 0)], found["model.x", (4, 0)])

    into = on_xla(torch.zeros(8, 4), (("data", "model"), None))  # two rows of each device
    loaded = {"model": {"x": into, "cpu": torch.zeros(4)}, "step": 0}
    planner = xc.SPMDLoadPlanner()
    loading = Recorded(planner)
    with alone():
        dcp.load(loaded, storage_reader=FileSystemReader(folder), planner=planner)
    read_items = {("model.x", (first, 0)) for first in (0, 2, 4, 6)} | {("model.cpu", (0,)), ("step", None)}
    ((_, local),) = loading.calls["create_local_plan"]
    assert {index_of(item) for item in local.items} == read_items
    sources = {tuple(item.dest_index.offset): item for item in local.items if item.dest_index.fqn == "model.x"}
    assert tuple(sources[6, 0].storage_index.offset) == (4, 0)
    assert (tuple(sources[6, 0].storage_offsets), tuple(sources[6, 0].lengths)) == ((2, 0), (2, 4))
    (((plans,), global_plans),) = loading.calls["create_global_plan"]
    assert plans == global_plans == [local]
    assert [result for _, result in loading.calls["finish_plan"]] == [local]
    (((item, _), _),) = loading.calls["load_bytes"]
    assert item.dest_index.fqn == "step"
    tensors = read_items - {("step", None)}
    assert {index_of(item) for (item,), _ in loading.calls["resolve_tensor"]} == tensors
    assert {index_of(item) for (item, _), _ in loading.calls["transform_tensor"]} == tensors
    assert {(index.fqn, tuple(index.offset)) for (index,), _ in loading.calls["lookup_tensor"]} == tensors
    for (item, given), _ in loading.calls["commit_tensor"]:
        assert tuple(given.shape) == ((4,) if item.dest_index.fqn == "model.cpu" else (2, 4))
    assert loaded["step"] == 3
    assert torch.equal(loaded["model"]["cpu"], plain[0])
    assert loaded["model"]["x"] is into
    assert torch.equal(into.cpu(), plain)
    assert parts(into) == {(2, 4)}


def test_plans_and_data(spmd, tmp_path):
    spmd(plans_and_data, str(tmp_path))


def regions_are_written_when_all_are_there(folder: str) -> None:
    plain = torch.arange(32.0).reshape(8, 4)
    save({"x": on_xla(plain, (("data", "model"), None)), "rate": 0.5}, folder)
    into = on_xla(torch.zeros(8, 4), ("data", None))
    state = {"x": into, "rate": 0.0}
    planner = xc.SPMDLoadPlanner()
    planner.set_up_planner(state, FileSystemReader(folder).read_metadata(), True)
    plan = planner.finish_plan(planner.create_global_plan([planner.create_local_plan()])[0])
    items = [item for item in plan.items if item.dest_index.fqn == "x"]
    assert len(items) == 4
    for number, item in enumerate(items):
        assert into.sum().item() == 0.0  # until the last region is there
        place = planner.resolve_tensor(item)
        first = item.dest_index.offset[0] + item.dest_offsets[0]
        whole = planner.lookup_tensor(item.dest_index)
        assert (tuple(whole.shape), tuple(place.shape)) == ((4, 4), (2, 4))
        place.copy_(plain[first : first + 2])
        assert torch.equal(planner.transform_tensor(item, whole), place)
        planner.commit_tensor(item, place)
        assert bool(into.sum().item()) is (number == 3)
    assert torch.equal(into.cpu(), plain)
    (rate,) = [item for item in plan.items if item.dest_index.fqn == "rate"]
    stream = io.BytesIO()
    torch.save(0.25, stream)
    stream.seek(0)
    planner.load_bytes(rate, stream)
    assert state["rate"] == 0.25


def test_regions_are_written_when_all_are_there(spmd, tmp_path):
    spmd(regions_are_written_when_all_are_there, str(tmp_path))
