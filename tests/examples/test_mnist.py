"""The examples of training on several devices: as many as there may be, the losses are those of one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(script: str, devices: int) -> tuple[list[float], list[float]]:
    """Losses, and the accuracy after each epoch."""
    command = [sys.executable, "-m", "lazy_runtime", str(EXAMPLES / script), "--samples=1024", "--batch-size=64"]
    done = subprocess.run(
        [*command, "--log-steps=4"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CPU_NUM_DEVICES": str(devices)},
        timeout=240,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return tuple([float(x) for x in re.findall(rf"{name}: ([\d.]+)", done.stdout)] for name in ("loss", "accuracy"))  # type: ignore[return-value]


def test_processes():
    losses, accuracies = run("mnist_processes.py", 1)
    assert len(losses) == 8
    assert accuracies[1] > max(accuracies[0], 0.2)  # of ten classes
    for devices in (2, 4):
        assert run("mnist_processes.py", devices) == (pytest.approx(losses, abs=1e-5), pytest.approx(accuracies))
