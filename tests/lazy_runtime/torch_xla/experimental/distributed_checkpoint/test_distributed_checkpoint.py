"""`CheckpointManager` in one process; `test_checkpoints_of_ranks.py` and `test_faults.py` have it among ranks."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException

import lazy_runtime
from lazy_runtime.torch_xla.experimental.distributed_checkpoint import CheckpointManager, prime_optimizer


def manager(path: Path, **options: Any) -> CheckpointManager:
    return CheckpointManager(path, **{"save_interval": 10, "chkpt_on_preemption": False, **options})


def state(value: float) -> dict[str, Any]:
    return {"weight": torch.full((3, 4), value, device="xla"), "step": int(value), "rate": 0.5}


def empty() -> dict[str, Any]:
    return {"weight": torch.zeros(3, 4, device="xla"), "step": -1, "rate": 0.0}


def restored(checkpoints: CheckpointManager, step: int) -> tuple[float, int, float]:
    found = empty()
    weight = found["weight"]
    checkpoints.restore(step, found)
    assert found["weight"].device.type == "xla"
    assert torch.equal(weight.cpu(), found["weight"].cpu())  # in place
    (value,) = set(weight.cpu().flatten().tolist())
    return value, found["step"], found["rate"]


def test_saves_by_the_interval_and_keeps_the_latest(tmp_path):
    checkpoints = manager(tmp_path, max_to_keep=2)
    assert checkpoints.all_steps() == []
    assert [step for step in range(45) if checkpoints.save(step, state(step))] == [0, 10, 20, 30, 40]
    assert checkpoints.save(44, state(44), force=True)
    assert checkpoints.all_steps() == [40, 44]
    assert sorted(os.listdir(tmp_path)) == ["40", "44"]
    assert restored(checkpoints, 44) == (44.0, 44, 0.5)
    checkpoints.save(44, state(7), force=True)  # again
    assert restored(manager(tmp_path), 44) == (7.0, 7, 0.5)
    with pytest.raises(FileNotFoundError, match=r"no checkpoint of step 30 .*\[40, 44\]"):
        checkpoints.restore(30, empty())


def test_asynchronous_saving_has_the_values_of_the_call(tmp_path):
    checkpoints = manager(tmp_path, save_interval=1, max_pending_async=2)
    weight = torch.zeros(64, 64, device="xla")
    for step in range(1, 5):
        weight.add_(1.0)  # pending when it is saved, and donated by the next execution where nobody holds it
        assert checkpoints.save_async(step, {"weight": weight})
        lazy_runtime.sync()
    weight.zero_()
    lazy_runtime.sync()
    checkpoints.join()
    assert checkpoints.all_steps() == [1, 2, 3, 4]
    for step in checkpoints.all_steps():
        found = {"weight": torch.empty(64, 64, device="xla")}
        checkpoints.restore(step, found)
        assert torch.equal(found["weight"].cpu(), torch.full((64, 64), float(step)))


def test_an_error_in_the_background_is_raised_at_the_next_call(tmp_path):
    checkpoints = manager(tmp_path)
    checkpoints.save_async(10, {"function": lambda: None})
    with pytest.raises(CheckpointException, match="lambda"):
        checkpoints.join()
    assert checkpoints.all_steps() == []
    checkpoints.save_async(20, {"function": lambda: None})
    with pytest.raises(CheckpointException, match="lambda"):
        checkpoints.save(30, state(30))
    assert checkpoints.save(40, state(40))
    assert checkpoints.all_steps() == [40]


def test_what_a_killed_job_has_left_is_taken_away(tmp_path):
    checkpoints = manager(tmp_path)
    for step in (10, 20):
        checkpoints.save(step, state(step))
    (tmp_path / ".unfinished-30").mkdir()
    (tmp_path / ".replaced-10").mkdir()  # deleting it was begun
    os.rename(tmp_path / "20", tmp_path / ".replaced-20")  # its successor has not got its name
    (tmp_path / ".unfinished-20").mkdir()
    assert checkpoints.all_steps() == [10]
    again = manager(tmp_path)
    assert again.all_steps() == [10, 20]
    assert sorted(os.listdir(tmp_path)) == ["10", "20"]
    assert restored(again, 20) == (20.0, 20, 0.5)


def test_a_sigterm_is_a_reason_to_save(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    try:
        checkpoints = manager(tmp_path, chkpt_on_preemption=True)
        assert not checkpoints.should_save(1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert checkpoints.reached_preemption(2)
        assert checkpoints.save(3, state(3))
    finally:
        signal.signal(signal.SIGTERM, before)


def test_numbers_that_make_no_sense(tmp_path):
    for name, value in (("save_interval", 0), ("max_to_keep", -1), ("max_pending_async", 0)):
        with pytest.raises(ValueError, match=name):
            manager(tmp_path, **{name: value})


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_a_primed_optimizer_takes_a_state(kind):
    def made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2).to("xla")
        options = {"momentum": 0.9} if kind is torch.optim.SGD else {"weight_decay": 0.1}
        return model, kind(model.parameters(), lr=0.1, **options)

    model, optimizer = made()
    before = [each.detach().cpu().clone() for each in model.parameters()]
    assert prime_optimizer(optimizer) is optimizer
    assert len(optimizer.state) == 2
    assert optimizer.param_groups[0]["lr"] == 0.1
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert parameter.grad is None
        assert torch.equal(parameter.detach().cpu(), old)
    state_before = len(optimizer.state)
    prime_optimizer(optimizer)  # which has its state already
    assert len(optimizer.state) == state_before
