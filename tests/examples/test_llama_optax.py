"""The example of jax and optax: what it trains, torch trains alike."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from benchmarks.models.model import torchvision_models

SCRIPT = Path(__file__).parents[2] / "examples" / "llama_optax.py"

# transformers imports torchvision, which may have been built for another torch
START = """
import runpy
from benchmarks.models.model import torchvision_models
torchvision_models()
runpy.run_path({script!r}, run_name="__main__")
"""


def losses_of_the_script(steps: int, devices: int) -> list[float]:
    result = subprocess.run(
        [sys.executable, "-c", START.format(script=str(SCRIPT)), f"--steps={steps}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=SCRIPT.parents[1],
        env={**os.environ, "CPU_NUM_DEVICES": str(devices)},
        timeout=240,
    )
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    assert f"on {devices} devices" in result.stdout
    return [float(found) for found in re.findall(r"loss: ([\d.]+)", result.stdout)]


def losses_of_torch(steps: int) -> list[float]:
    torchvision_models()
    spec = importlib.util.spec_from_file_location("llama_optax", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    model = example.model_of()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.01)
    found = []
    for number in range(steps):
        tokens = torch.from_numpy(example.batch_of(number))
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def test_losses_on_four_devices():
    found = losses_of_the_script(steps=6, devices=4)
    np.testing.assert_allclose(found, losses_of_torch(6), rtol=1e-4)
    assert found[-1] < found[0] - 0.5
