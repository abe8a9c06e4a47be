"""The examples of training on several devices: in whatever form, the losses are those of one device, and a step is one
execution of each rank.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

STEPS = 16
BATCH = 32
EPOCHS = 2


class Run(NamedTuple):
    """What a trainer has printed.

    Attributes:
        losses: of some steps.
        accuracies: after each epoch.
        executions: of the training steps, epoch by epoch, by each of the processes.
    """

    losses: list[float]
    accuracies: list[float]
    executions: list[list[int]]


def run(script: str, devices: int, torchrun: bool = False) -> Run:
    """Runs an example on so many devices, or under `torchrun` in so many processes."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={devices}"] if torchrun else []
    flags = [f"--samples={STEPS * BATCH}", f"--batch-size={BATCH}", f"--epochs={EPOCHS}", "--log-steps=4", "--metrics"]
    done = subprocess.run(
        [sys.executable, *launcher, "-m", "lazy_runtime", str(EXAMPLES / script), *flags],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CPU_NUM_DEVICES": "1" if torchrun else str(devices)},
        timeout=240,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    losses, accuracies = (
        [float(number) for number in re.findall(rf"{name}: ([\d.]+)", done.stdout)] for name in ("loss", "accuracy")
    )
    executions = re.findall(rf"steps: {STEPS} executions: \(([\d, ]+)\)", done.stdout)
    return Run(losses, accuracies, [[int(number) for number in re.findall(r"\d+", each)] for each in executions])


@pytest.fixture(scope="module")
def one_device() -> Run:
    return run("mnist_processes.py", 1)


def test_one_device_learns(one_device):
    assert len(one_device.losses) == EPOCHS * STEPS // 4
    assert one_device.accuracies[-1] > max(one_device.accuracies[0], 0.2)  # of ten classes
    assert one_device.executions == [[STEPS]] * EPOCHS


@pytest.mark.parametrize(
    ("script", "devices", "torchrun", "executions"),
    [
        ("mnist_processes.py", 2, False, [[STEPS] * 2] * EPOCHS),
        ("mnist_processes.py", 4, False, [[STEPS] * 4] * EPOCHS),
        ("mnist_threads.py", 4, False, [[4 * STEPS]] * EPOCHS),  # of four ranks in one process
        ("mnist_spmd.py", 4, False, [[STEPS]] * EPOCHS),
        # in the second step rank 0 tells the others about its buckets, and torch reads that twice
        ("mnist_ddp.py", 2, True, [[STEPS + 2] * 2] + [[STEPS] * 2] * (EPOCHS - 1)),
        ("mnist_fsdp.py", 2, True, [[STEPS] * 2] * EPOCHS),
    ],
)
def test_losses_of_one_device(one_device, script, devices, torchrun, executions):
    found = run(script, devices, torchrun)
    assert found.losses == pytest.approx(one_device.losses, abs=1e-5)
    assert found.accuracies == pytest.approx(one_device.accuracies)
    assert found.executions == executions
