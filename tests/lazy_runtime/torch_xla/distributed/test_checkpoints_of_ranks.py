"""`torch.distributed.checkpoint` of xla tensors, written by several ranks and read by another number of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.distributed.checkpoint
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import lazy_runtime
from lazy_runtime.processes import process_job
from lazy_runtime.torch_xla.experimental.distributed_checkpoint import CheckpointManager
from tests.lazy_runtime.torch_xla.distributed.test_xla_backend import gloo

dist: Any = torch.distributed
dcp: Any = torch.distributed.checkpoint

STEPS = 2


def trained(steps: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(steps):
        train(model, optimizer, step)
    return model, optimizer


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(step)).to("xla")
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    lazy_runtime.sync()


def parameters(model: torch.nn.Module) -> list[torch.Tensor]:
    return [each.detach().cpu() for each in model.parameters()]


def saved(folder: Path) -> list[torch.Tensor]:
    """One by torch, two by the manager, one of them in the background; what the next step gives."""
    group = gloo()
    model, optimizer = trained(STEPS)
    checkpoints = CheckpointManager(folder / "managed", 1, max_to_keep=2, chkpt_on_preemption=False)
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder / "plain")
    future = dcp.async_save(
        {"model": weights, "optimizer": state},
        checkpoint_id=folder / "background",
        process_group=group,
        async_stager=BlockingAsyncStager(),
    )
    future.result()
    checkpoints.save(0, {"model": weights})
    checkpoints.save(1, {"model": weights, "optimizer": state})
    checkpoints.save_async(2, {"model": weights, "optimizer": state})
    train(model, optimizer, STEPS)
    checkpoints.join()
    assert checkpoints.all_steps() == [1, 2]
    return parameters(model)


def resumed(folder: Path) -> list[list[torch.Tensor]]:
    """The same step from each of the checkpoints, in a model that knows nothing of it."""
    gloo()
    checkpoints = CheckpointManager(folder / "managed", 1, chkpt_on_preemption=False)
    found = []
    for name in ("plain", "background", 1, 2):
        model, optimizer = trained(0)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        weights, state = get_state_dict(model, optimizer)
        content = {"model": weights, "optimizer": state}
        if isinstance(name, int):
            checkpoints.restore(name, content)
        else:
            dcp.load(content, checkpoint_id=folder / name)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
        train(model, optimizer, STEPS)
        assert all(parameter.device.type == "xla" for parameter in model.parameters())
        found.append(parameters(model))
    return found


def test_training_goes_on_from_a_checkpoint(ranks, tmp_path):
    (expected, _) = ranks(2)(saved, tmp_path)
    assert sorted(os.listdir(tmp_path / "managed")) == ["1", "2"]
    for found in ranks(4)(resumed, tmp_path):
        for tensors in found:
            for mine, theirs in zip(tensors, expected, strict=True):
                torch.testing.assert_close(mine, theirs)


def preempted(folder: Path) -> list[int]:
    gloo()
    checkpoints = CheckpointManager(folder, 1000, chkpt_on_preemption=False)
    steps = []
    for step in range(1, 30):
        if step == 5 and process_job.place().rank == 1:
            checkpoints._note_end()
        process_job.exchange("step", b"")
        if checkpoints.should_save(step):
            steps.append(step)
    return steps


def test_ranks_save_at_one_step_when_one_is_told_to_end(ranks, tmp_path):
    first, second = ranks(2)(preempted, tmp_path)
    assert first == second
    assert len(first) == 1
