"""`lightning.pytorch.Trainer`, unmodified: its one XLA accelerator is called "tpu", whatever the platform."""

from __future__ import annotations

import pytest

from tests.libraries.running import needs, on_cpu, on_xla

pytestmark = [needs("lightning"), pytest.mark.long]

# float32 in another order of additions, over 24 steps of training
CLOSE = {"rel": 1e-5}


@pytest.fixture(scope="module")
def cpu(tmp_path_factory):
    return on_cpu("lightning_fit.py", "cpu", 1, ".", folder=tmp_path_factory.mktemp("cpu"))


@pytest.mark.parametrize("accelerator", ["tpu", "auto"])
def test_one_device(cpu, accelerator, tmp_path):
    found = on_xla("lightning_fit.py", accelerator, 1, ".", folder=tmp_path).found
    assert (found["accelerator"], found["device"]) == ("XLAAccelerator", "xla")
    assert found["losses"] == pytest.approx(cpu["losses"], **CLOSE)
    assert found["resumed"]
    assert found["epochs"] == cpu["epochs"] == 2  # early stopping


def test_the_cpu_under_the_alias(cpu, tmp_path):
    assert on_xla("lightning_fit.py", "cpu", 1, ".", folder=tmp_path).found == cpu


def test_two_devices(tmp_path):
    """As two ranks of torch's DistributedDataParallel on the CPU, each with its share of the batches."""
    cpu = on_cpu("lightning_fit.py", "cpu", 2, "cpu", folder=tmp_path)
    found = on_xla("lightning_fit.py", "tpu", 2, "xla", folder=tmp_path, devices=2).found
    assert len(found["losses"]) == 3
    assert found["losses"] == pytest.approx(cpu["losses"], **CLOSE)


def test_bfloat16(cpu, tmp_path):
    found = on_xla("lightning_fit.py", "tpu", 1, ".", "bf16-true", folder=tmp_path).found
    assert found["losses"] != pytest.approx(cpu["losses"], **CLOSE)
    assert found["losses"] == pytest.approx(cpu["losses"], rel=2e-2)
    assert all(loss % 0.25 == 0 for loss in found["losses"])  # eight bits of a number between 32 and 64
