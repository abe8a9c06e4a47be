"""Tensors that are saved in the parts that they are in, and loaded into others."""

from __future__ import annotations

import contextlib
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
