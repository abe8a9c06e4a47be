"""The kind of a device, and its memory."""

from __future__ import annotations

import gc
import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import lazy_runtime
from lazy_runtime.platform import hardware, xla_devices


def device() -> Any:
    return xla_devices.get(torch.device("xla:0"))


def made_up(platform: str, version: str = "", **counted: int) -> Any:
    """A device that this machine may not have.

    Args:
        version: what its plugin says of itself.
        counted: what its allocator says of the memory.
    """
    client = SimpleNamespace(platform_version=version)
    return SimpleNamespace(
        platform=platform, jax_device=SimpleNamespace(client=client, memory_stats=lambda: counted or None)
    )


@pytest.fixture
def counts_nothing():
    """The device, if its allocator counts nothing, as XLA's on the CPU."""
    found = device()
    assert not found.jax_device.memory_stats()
    hardware.memory(found)  # buffers that other tests have left are no news then
    return found


@pytest.mark.parametrize(
    ("platform", "version", "expected"),
    [
        ("cpu", "", "CPU"),
        ("tpu", "", "TPU"),
        ("gpu", "PJRT C API\ncuda 13000", "CUDA"),
        ("gpu", "PJRT C API\nROCm 60300", "ROCM"),
        ("some_plugin", "", "SOME_PLUGIN"),
    ],
)
def test_a_kind_has_pytorch_xlas_name(platform, version, expected):
    assert hardware.kind(made_up(platform, version)) == expected


def test_an_allocator_that_counts_is_believed():
    found = hardware.memory(made_up("gpu", bytes_in_use=5, bytes_limit=100, peak_bytes_in_use=7, num_allocs=3))
    assert found == {"bytes_used": 5, "bytes_limit": 100, "peak_bytes_used": 7}


@pytest.mark.parametrize(("counted", "limit"), [({"bytes_reservable_limit": 90}, 90), ({"bytes_limit": 0}, 0), ({}, 0)])
def test_what_an_allocator_does_not_count_is_taken_from_the_rest(counted, limit):
    found = hardware.memory(made_up("tpu", bytes_in_use=5, **counted))
    assert found == {"bytes_used": 5, "bytes_limit": limit, "peak_bytes_used": 5}


def test_live_buffers_are_counted_where_no_allocator_does(counts_nothing):
    gc.collect()  # what earlier tests have left
    before = hardware.memory(counts_nothing)["bytes_used"]
    x = torch.ones(1 << 18).to("xla")
    assert hardware.memory(counts_nothing)["bytes_used"] - before == 4 << 18
    del x
    assert hardware.memory(counts_nothing)["bytes_used"] == before


def test_a_pending_result_takes_no_memory(counts_nothing):
    gc.collect()  # what earlier tests have left
    before = hardware.memory(counts_nothing)["bytes_used"]
    x = torch.ones(1 << 18, device="xla") + 1
    assert hardware.memory(counts_nothing)["bytes_used"] == before
    lazy_runtime.sync(wait=True)
    assert hardware.memory(counts_nothing)["bytes_used"] - before == 4 << 18
    del x


def test_the_peak_stays_when_buffers_go(counts_nothing):
    x = torch.ones(1 << 18).to("xla")
    most = hardware.memory(counts_nothing)
    assert most["peak_bytes_used"] >= most["bytes_used"]
    del x
    after = hardware.memory(counts_nothing)
    assert after["bytes_used"] < most["bytes_used"]
    assert after["peak_bytes_used"] == most["peak_bytes_used"]


def test_the_limit_is_the_machines_memory(counts_nothing):
    expected = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert hardware.memory(counts_nothing)["bytes_limit"] == expected


def test_a_second_look_counts_a_buffer_once(counts_nothing):
    before = hardware.memory(counts_nothing)["bytes_used"]
    x = torch.ones(1 << 18).to("xla")
    lazy_runtime.sync(wait=True)
    used = [hardware.memory(counts_nothing)["bytes_used"] - before for _ in range(3)]
    assert used == [x.nbytes] * 3
