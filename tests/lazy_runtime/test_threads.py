"""Threads at work on the same devices lose nothing, with random interleavings (`threads.py`)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lazy_runtime.execution import execute
from lazy_runtime.platform import xla_devices
from lazy_runtime.recording import dispatch
from tests.lazy_runtime import threads


@pytest.mark.parametrize("mode", threads.MODES)
@pytest.mark.parametrize("compiles", [False, True])
def test_threads_on_one_device(mode, compiles):
    threads.run(
        mode, 6, seed=len(mode) + compiles, steps=12 if compiles and mode != "eager" else 200, compiles=compiles
    )


def test_threads_on_several_devices(forked_process):
    """Of one process, since devices are made at its start."""
    code = """
    from tests.lazy_runtime import threads

    for mode in ("lazy", "eager"):
        print(mode, threads.run(mode, 2, seed=7, devices=4, steps=60, compiles=False))
    """
    assert len(forked_process(code, CPU_NUM_DEVICES="4").splitlines()) == 2


@pytest.mark.long
def test_threads_for_ten_minutes():
    command = [sys.executable, "-m", "tests.lazy_runtime.threads", "--seconds", "600"]
    subprocess.run(command, check=True, timeout=1200)


def test_traces_are_counted_by_all_threads():
    device = xla_devices.get(0)
    with dispatch.Trace(device), dispatch.Trace(device):
        assert dispatch._traces == 2
    assert dispatch._traces == 0


def test_a_buffer_is_seen_with_its_order():
    """Of a value whose buffer is brought into another order, nobody sees the one with the other's mark."""
    import torch

    from lazy_runtime.tensor.xla_tensor import unwrap

    x = torch.arange(24.0, device="xla").reshape(1, 2, 3, 4) + 1
    value = unwrap(x).handle.value
    execute.array_of(value, xla_devices.get(0))
    for is_last, shape in ((True, (1, 3, 4, 2)), (False, (1, 2, 3, 4))):
        assert execute.array_of(value, xla_devices.get(0), is_last).shape == shape
        assert execute.buffer(value)[1] is is_last
    assert x.flatten().tolist() == [*range(1, 25)]
