"""`xr`."""

from __future__ import annotations

import pytest
import torch

import lazy_runtime
from lazy_runtime.cache import disk_cache
from lazy_runtime.compilation import compiler
from lazy_runtime.torch_xla import runtime as xr


def test_devices_and_replicas():
    count = lazy_runtime.device_count()
    assert xr.addressable_device_count() == xr.local_device_count() == xr.addressable_runtime_device_count() == count
    assert xr.global_device_count() == xr.global_runtime_device_count() >= count
    assert [each["name"] for each in xr.global_runtime_device_attributes()] == lazy_runtime.real_devices()
    assert xr.runtime_device_attributes("xla:0") == xr.global_runtime_device_attributes()[0]
    assert (xr.world_size(), xr.process_count(), xr.local_process_count()) == (1, 1, 1)
    assert (xr.global_ordinal(), xr.local_ordinal(), xr.process_index(), xr.host_index()) == (0, 0, 0, 0)
    assert xr.using_pjrt()
    assert xr.is_bf16_supported()
    assert xr.xla_device() == torch.device("xla:0")
    assert set(xr.get_memory_info()) == {"bytes_used", "bytes_limit", "peak_bytes_used"}
    assert not xr.is_spmd()
    with pytest.raises(NotImplementedError, match="mark_sharding"):
        xr.use_spmd(auto=True)


def test_the_platform_is_chosen_before_the_first_use(forked_process):
    printed = forked_process(
        """
        from lazy_runtime.torch_xla import runtime as xr
        import lazy_runtime
        xr.set_device_type("CPU")
        print(xr.device_type(), lazy_runtime.real_devices(), xr.global_device_count())
        xr.set_device_type("cpu")
        try:
            xr.set_device_type("TPU")
        except RuntimeError as error:
            print(error)
        """,
        CPU_NUM_DEVICES="2",
        PJRT_DEVICE="",
    )
    devices, error = printed.splitlines()
    assert devices == "CPU ['CPU:0', 'CPU:1'] 2"
    assert error.startswith("set_device_type('TPU'): the devices are up on CPU")


def test_programs_at_hand_are_counted():
    compiler.clear()
    x = torch.ones(3, device="xla")
    for _ in range(2):
        y = x.cos()
        lazy_runtime.sync()
        z = y.sin()
        lazy_runtime.sync()
    assert xr.get_num_cached_compilation_graph() == 3
    assert z.shape == x.shape


def test_initialize_cache(monkeypatch):
    given = []
    monkeypatch.setattr(disk_cache, "initialize", lambda *arguments: given.append(arguments))
    xr.initialize_cache("/somewhere", readonly=True)
    assert given == [("/somewhere", True)]


def test_the_kind_of_the_devices_is_known_before_xla_is_used(forked_process):
    printed = forked_process(
        """
        import os
        from lazy_runtime.platform import xla_devices
        from lazy_runtime.torch_xla import runtime as xr
        print(xr.device_type())
        os.environ["PJRT_DEVICE"] = "cpu"
        print(xr.device_type())
        del os.environ["PJRT_DEVICE"]
        os.environ["PJRT_SELECT_DEFAULT_DEVICE"] = "0"
        print(xr.device_type(), xla_devices.is_started())
        """,
        PJRT_DEVICE="TPU",
    )
    assert printed.splitlines() == ["TPU", "CPU", "None False"]


def test_where_the_processes_meet(monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert xr.get_master_ip() == "localhost"
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    assert xr.get_master_ip() == "10.0.0.1"


def test_a_device_that_is_not_there():
    for error in (IndexError, RuntimeError):
        with pytest.raises(error, match="xla:99 does not exist"):
            lazy_runtime.device(99)
