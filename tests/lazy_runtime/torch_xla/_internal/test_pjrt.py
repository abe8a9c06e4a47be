"""Functions in a process, or a thread, for each device."""

from __future__ import annotations

import os

import pytest
import torch

from lazy_runtime.torch_xla import runtime as xr
from lazy_runtime.torch_xla._internal import pjrt, tpu
from lazy_runtime.torch_xla.core import xla_model as xm


def summed(number, *, factor):
    x = torch.tensor([float(number + xr.global_ordinal())], device="xla")
    return xr.world_size(), xm.all_reduce("sum", x) * factor


def test_results_of_processes(monkeypatch):
    monkeypatch.setenv("CPU_NUM_DEVICES", "2")
    monkeypatch.setattr(pjrt.xmp.discovery, "kind_and_count", lambda: ("CPU", 2))
    found = pjrt.run_multiprocess(summed, 10, factor=2)
    assert {rank: (size, x.device.type, x.tolist()) for rank, (size, x) in found.items()} == {
        0: (2, "xla", [42.0]),
        1: (2, "xla", [42.0]),
    }


def test_one_device_has_a_process_of_its_own(monkeypatch):
    monkeypatch.setattr(pjrt.xmp.discovery, "kind_and_count", lambda: ("CPU", 1))
    (process,) = pjrt.run_multiprocess(os.getpid).values()
    assert process != os.getpid()
    with pytest.raises(Exception, match="the factor is missing"):
        pjrt.run_multiprocess(failing)


def failing():
    raise ValueError("the factor is missing")


def test_spawn():
    seen = []
    pjrt.spawn(lambda rank, *args: seen.append((rank, args)), nprocs=1, args=(1, 2))
    assert seen == [(0, (1, 2))]
    with pytest.raises(ValueError, match="nprocs: expected 1 or None, got 2"):
        pjrt.spawn(print, nprocs=2)


def test_threads(forked_process):
    printed = forked_process(
        """
        import threading
        import torch
        from lazy_runtime.torch_xla import runtime as xr
        from lazy_runtime.torch_xla.core import xla_model as xm
        from lazy_runtime.torch_xla._internal import pjrt
        found = {}
        def fn(rank, number):
            x = torch.tensor([number + rank], device="xla")
            found[rank] = x.device.index, xr.world_size(), xm.all_reduce("sum", x).item()
        pjrt.spawn_threads(fn, (10,))
        print(sorted(found.items()))
        """,
        CPU_NUM_DEVICES="2",
        PJRT_DEVICE="CPU",
    )
    assert printed.strip() == "[(0, (0, 2, 21)), (1, (1, 2, 21))]"


def test_initialize(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="the environment has LOCAL_RANK=1, expected 0"):
        pjrt.initialize_multiprocess(0, 2)
    pjrt.initialize_multiprocess(1, 2)
    called = []
    monkeypatch.setenv("PJRT_DEVICE", "tpu")
    monkeypatch.setattr(tpu, "configure_topology", lambda *args: called.append(args))
    monkeypatch.setattr(tpu, "configure_one_chip_topology", lambda: called.append("one"))
    pjrt.initialize_multiprocess(1, 2)
    pjrt.initialize_singleprocess()
    assert called == [(1, 2), "one"]
    assert xm.xla_device() == torch.device("xla:0")
