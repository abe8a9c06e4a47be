"""What a host knows of its TPUs, on hosts that others describe."""

from __future__ import annotations

import os

import pytest

import lazy_runtime
from lazy_runtime.torch_xla._internal import tpu


@pytest.fixture
def slice_of_two_hosts(monkeypatch):
    """The second host of a v5 slice of 4 × 4 chips, as variables describe it."""
    for name in [name for name in os.environ if name.startswith(("TPU_", "CLOUD_TPU_"))]:
        monkeypatch.delenv(name)
    for name, value in {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-16",
        "TPU_HOST_BOUNDS": "2,1,1",
        "TPU_CHIPS_PER_HOST_BOUNDS": "2,4,1",
        "TPU_WORKER_ID": "1",
        "TPU_WORKER_HOSTNAMES": "first,second",
    }.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_the_slice_by_variables(slice_of_two_hosts):
    assert tpu.get_tpu_env() == {
        "ACCELERATOR_TYPE": "v5litepod-16",
        "TPU_PROCESS_BOUNDS": "2,1,1",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "2,4,1",
        "WORKER_ID": "1",
    }
    assert tpu.build_tpu_env_from_vars().keys() == tpu.TpuEnv.__annotations__.keys()
    assert (tpu.version(), tpu.get_tpu_type(), tpu.worker_id()) == (5, "v5litepod", 1)
    assert (tpu.get_worker_ips(), tpu.num_tpu_workers()) == (["first", "second"], 2)
    assert (tpu.task_id(), tpu.process_bounds_size()) == (None, None)
    slice_of_two_hosts.setenv("TPU_ACCELERATOR_TYPE", "abacus")
    with pytest.raises(OSError, match="expected a type of accelerator as v4-8, got 'abacus'"):
        tpu.version()


def test_the_slice_by_metadata(monkeypatch):
    monkeypatch.delenv("TPU_SKIP_MDS_QUERY", raising=False)
    pages = {
        "tpu-env": "ACCELERATOR_TYPE: 'v4-16'\nTPU_PROCESS_BOUNDS: '1,1,2'\nWORKER_ID: '0'\nZONE: \"a-b\"\n",
        "worker-network-endpoints": "a:1:10.0.0.4,b:2:10.0.0.5",
    }
    monkeypatch.setattr(tpu, "_get_metadata", pages.__getitem__)
    assert tpu.get_tpu_env()["ZONE"] == "a-b"
    assert (tpu.version(), tpu.get_tpu_type(), tpu.worker_id()) == (4, "v4", 0)
    assert tpu.get_worker_ips() == ["10.0.0.4", "10.0.0.5"]
    pages["worker-network-endpoints"] = "a:1:10.0.0.4"
    assert tpu.get_worker_ips() == ["localhost"]
    assert tpu.discover_master_worker_ip() == "localhost"


def test_no_metadata_server(monkeypatch):
    monkeypatch.setattr(tpu, "_METADATA", "http://localhost:9/")
    with pytest.raises(OSError, match=r"did not tell 'tpu-env'.*set TPU_SKIP_MDS_QUERY=1"):
        tpu._get_metadata("tpu-env")


def test_a_process_for_each_chip(slice_of_two_hosts):
    tpu.configure_topology(local_rank=3, local_world_size=8, base_port=100)
    assert os.environ["TPU_CHIPS_PER_PROCESS_BOUNDS"] == "1,1,1"
    assert os.environ["TPU_PROCESS_BOUNDS"] == "4,4,1"
    assert os.environ["CLOUD_TPU_TASK_ID"] == "11"
    assert os.environ["TPU_VISIBLE_CHIPS"] == "3"
    assert os.environ["TPU_PROCESS_PORT"] == "103"
    addresses = os.environ["TPU_PROCESS_ADDRESSES"].split(",")
    assert addresses == [f"{host}:{port}" for host in ("first", "second") for port in range(100, 108)]
    assert (tpu.task_id(), tpu.process_bounds_size()) == (11, 16)
    tpu.configure_one_chip_topology()  # what is set stays
    assert os.environ["TPU_VISIBLE_CHIPS"] == "3"


def test_older_slices_of_known_shape(slice_of_two_hosts):
    slice_of_two_hosts.setenv("TPU_ACCELERATOR_TYPE", "v3-32")
    tpu.configure_topology(0, 4)
    assert os.environ["TPU_PROCESS_BOUNDS"] == "4,4,1"


def test_one_chip(monkeypatch):
    for name in ("TPU_VISIBLE_CHIPS", "TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_PROCESS_BOUNDS"):
        monkeypatch.setenv(name, "")  # comes back after the test
        monkeypatch.delenv(name)
    tpu.configure_one_chip_topology()
    assert os.environ["TPU_VISIBLE_CHIPS"] == "0"
    assert os.environ["TPU_PROCESS_BOUNDS"] == os.environ["TPU_CHIPS_PER_PROCESS_BOUNDS"] == "1,1,1"


def test_chips(monkeypatch, tmp_path, slice_of_two_hosts):
    for number, (vendor, device) in enumerate([("0x1ae0", "0x0063"), ("0x1ae0", "0x1234"), ("0x8086", "0x0063")]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "device").write_text(f"{device}\n")
    found = sorted(map(str, tmp_path.glob("*/vendor")))
    monkeypatch.setattr(tpu.glob, "glob", lambda pattern: found)
    assert tpu.num_available_chips() == 1
    assert tpu.num_local_processes() == 1
    monkeypatch.setattr(tpu, "num_available_chips", lambda: 4)
    monkeypatch.delenv("PJRT_DEVICE", raising=False)
    assert (tpu.num_available_devices(), tpu.num_expected_global_devices()) == (4, 8)
    slice_of_two_hosts.setenv("TPU_ACCELERATOR_TYPE", "v3-8")
    assert (tpu.num_logical_cores_per_chip(), tpu.num_available_devices()) == (2, 8)
    monkeypatch.setenv("TPU_PROCESS_BOUNDS", "1,1,1")
    assert tpu.num_local_processes() == 1


def test_without_chips_the_devices_are_the_platforms(monkeypatch):
    monkeypatch.setattr(tpu, "num_available_chips", lambda: 0)
    assert tpu.num_available_devices() == lazy_runtime.device_count()


def test_shapes():
    shape = tpu.MeshShape.from_string("2,4,1")
    assert (shape, shape.size, shape * tpu.MeshShape(2, 1, 3)) == ((2, 4, 1), 8, (4, 4, 3))
    with pytest.raises(ValueError, match="expected the sizes of three axes, as 2,2,1, got '2,2'"):
        tpu.MeshShape.from_string("2,2")


def test_newer_variables_come_first_and_missing_ones_are_none(slice_of_two_hosts):
    slice_of_two_hosts.setenv("TPU_PROCESS_BOUNDS", "4,1,1")
    slice_of_two_hosts.setenv("TPU_CHIPS_PER_PROCESS_BOUNDS", "1,1,1")
    slice_of_two_hosts.setenv("CLOUD_TPU_TASK_ID", "3")
    slice_of_two_hosts.delenv("TPU_ACCELERATOR_TYPE")
    assert tpu.build_tpu_env_from_vars() == {
        "ACCELERATOR_TYPE": None,
        "TPU_PROCESS_BOUNDS": "4,1,1",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "WORKER_ID": "3",
    }
