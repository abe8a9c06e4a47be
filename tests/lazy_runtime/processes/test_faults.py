"""A rank is killed in the middle of a step, of a collective, of a save: the job ends, and the next one goes on from the
last whole checkpoint, to the weights of a training that nothing has interrupted.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from torch.multiprocessing import ProcessExitedException  # pyright: ignore[reportPrivateImportUsage]

import lazy_runtime
from lazy_runtime.torch_xla.core import xla_model as xm
from lazy_runtime.torch_xla.distributed import xla_backend
from lazy_runtime.torch_xla.distributed import xla_multiprocessing as xmp
from lazy_runtime.torch_xla.experimental.distributed_checkpoint import CheckpointManager, prime_optimizer
from tests.lazy_runtime.ranks import QUICKLY

STEPS = 12
RANKS = 2

#: Within which a job has to end after one of its ranks has been killed.
PATIENCE_S = 60


def model_and_optimizer() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_of(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()


def batch(step: int) -> torch.Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(step))


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_soon(chance: random.Random) -> None:
    threading.Timer(chance.uniform(0, 0.02), kill).start()


def kill_while_it_is_written(folder: Path, chance: random.Random) -> None:
    """Kills this process when an unfinished checkpoint is there, or has just got its name."""

    def watch() -> None:
        while not any(name.startswith(".unfinished") for name in os.listdir(folder)):
            pass
        time.sleep(chance.uniform(0, 0.02))
        kill()

    threading.Thread(target=watch).start()


def train(rank: int, folder: Path, fault: str | None, seed: int) -> None:
    xla_backend.register()
    torch.distributed.init_process_group("xla", init_method="xla://")
    model, _ = model_and_optimizer()
    model.to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    checkpoints = CheckpointManager(folder / "checkpoints", 2, max_to_keep=2, chkpt_on_preemption=False)
    first = 0
    if checkpoints.all_steps():
        prime_optimizer(optimizer)
        found: dict[str, Any] = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "next": 0}
        checkpoints.restore(checkpoints.all_steps()[-1], found)
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        first = found["next"]
    if rank == 0:
        with open(folder / "began", "a") as file:
            file.write(f"{first}\n")
    chance, victim = random.Random(seed), seed % RANKS
    for step in range(first, STEPS):
        here = rank == victim and step == first + 3
        if here and fault == "step":
            kill_soon(chance)
        if here and fault == "save":
            kill_while_it_is_written(folder / "checkpoints", chance)
        loss_of(model, batch(step).chunk(RANKS)[rank].to("xla")).backward()
        if here and fault == "collective":  # the other rank waits in it
            time.sleep(0.5)
            kill()
        xm.optimizer_step(optimizer)
        optimizer.zero_grad()
        lazy_runtime.sync()
        content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "next": step + 1}
        save = checkpoints.save if (step + 1) % 4 else checkpoints.save_async
        save(step + 1, content)
        if here and fault is not None:
            time.sleep(PATIENCE_S)  # it is about to be killed
    checkpoints.join()
    if rank == 0:
        torch.save([each.detach().cpu() for each in model.parameters()], folder / "weights")


def expected() -> list[torch.Tensor]:
    model, optimizer = model_and_optimizer()
    for step in range(STEPS):
        loss_of(model, batch(step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [each.detach() for each in model.parameters()]


def whole_checkpoints(folder: Path) -> list[int]:
    return sorted(int(name) for name in os.listdir(folder / "checkpoints") if name.isdigit())


def is_there(process: Any) -> bool:
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def survive(folder: Path, seed: int) -> None:
    """Each job begins where the one before it was killed."""
    last = 0
    for number, fault in enumerate(("step", "collective", "save")):
        context = xmp.spawn(train, (folder, fault, seed + number), RANKS, join=False, start_method=QUICKLY)
        began = time.monotonic()
        with pytest.raises(ProcessExitedException, match=f"process {(seed + number) % RANKS} .* SIGKILL"):
            xmp.wait(context)
        assert time.monotonic() - began < PATIENCE_S
        assert not any(is_there(process) for process in context.processes)
        steps = whole_checkpoints(folder)
        assert steps[-1] in (last + 2, last + 4)
        assert len(steps) <= 3  # one too many, where it was killed before it removed the oldest
        assert int((folder / "began").read_text().split()[-1]) == last
        last = steps[-1]
    assert xmp.spawn(train, (folder, None, seed), RANKS, start_method=QUICKLY) is None
    assert int((folder / "began").read_text().split()[-1]) == last
    assert whole_checkpoints(folder) == [STEPS - 2, STEPS]
    assert sorted(os.listdir(folder / "checkpoints")) == sorted([str(STEPS - 2), str(STEPS)])
    for mine, theirs in zip(torch.load(folder / "weights"), expected(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)


def test_ranks_are_killed_and_the_job_goes_on(tmp_path):
    survive(tmp_path, 0)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 11))
def test_ten_of_ten(tmp_path, seed):
    survive(tmp_path, seed)
