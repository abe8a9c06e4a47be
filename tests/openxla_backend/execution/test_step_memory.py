"""A long run of training steps holds no more memory than a short one."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import gc, os, sys
import torch
from torch import nn
import lazy_runtime

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

form = sys.argv[1]
model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4)).to("xla")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
inputs, targets = torch.randn(8, 16).to("xla"), torch.randint(0, 4, (8,)).to("xla")
call = torch.compile(model, backend="openxla") if form == "model" else model

def step():
    loss = nn.functional.cross_entropy(call(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()

if form == "step":
    step = torch.compile(step, backend="openxla")
elif form == "region":
    step = lazy_runtime.compile(step, trace_after=0)
for number in range(1, 1001):
    loss = step()
    schedule.step()
    lazy_runtime.sync()
    if number % 10 == 0:
        loss.item()
    if number in (200, 1000):
        print(resident())
"""


@pytest.mark.parametrize("form", ["lazy", "model", "step", "region"])
def test_a_thousand_steps(form, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    found = subprocess.run([sys.executable, tmp_path / "script.py", form], capture_output=True, text=True, timeout=600)
    assert found.returncode == 0, found.stderr
    early, late = map(int, found.stdout.split())
    assert late <= 1.01 * early
