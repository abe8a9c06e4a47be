"""The devices of the host, found out without a use of xla."""

from __future__ import annotations

import pytest

import lazy_runtime
from lazy_runtime.platform import discovery
from lazy_runtime.torch_xla import runtime as xr


def test_once_xla_is_used_its_devices_count(monkeypatch):
    kind, count = xr.device_type(), lazy_runtime.device_count()
    assert discovery.kind_and_count() == (kind, count)
    if kind == "CPU":  # processes that are started now have as many
        monkeypatch.setenv("CPU_NUM_DEVICES", "7")
        assert discovery.kind_and_count() == ("CPU", 7)


def test_the_question_is_no_use_of_xla(forked_process):
    printed = forked_process(
        """
        from lazy_runtime.platform import discovery, xla_devices
        from lazy_runtime.torch_xla import runtime as xr
        print(xr.device_type(), discovery.kind_and_count(), xla_devices.is_started())
        discovery._has_plugins = lambda: True  # another process looks then
        print(xr.device_type(), discovery.kind_and_count(), xla_devices.is_started())
        import os
        os.environ["PJRT_DEVICE"] = "abacus"
        print(xr.device_type())
        try:
            discovery.kind_and_count()
        except RuntimeError as error:
            print(error)
        """,
        CPU_NUM_DEVICES="3",
        PJRT_DEVICE="",
        JAX_PLATFORMS="cpu",
    ).splitlines()
    assert printed[:2] == ["CPU ('CPU', 3) False"] * 2
    assert printed[2] == "ABACUS"  # what was chosen, whether it is there or not
    assert printed[3].startswith("no devices of the platform ABACUS were found: RuntimeError: the environment variable")


@pytest.mark.parametrize(("variable", "count"), [("", 1), ("5", 5)])
def test_cpus_are_as_many_as_the_environment_says(monkeypatch, variable, count):
    monkeypatch.setattr(discovery.xla_devices, "is_started", lambda: False)
    monkeypatch.setenv("PJRT_DEVICE", "cpu")
    monkeypatch.setenv("CPU_NUM_DEVICES", variable)
    assert discovery.kind_and_count() == ("CPU", count)
