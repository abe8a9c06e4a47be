"""Loops of `accelerate.Accelerator`, unmodified, in one process and in two."""

from __future__ import annotations

import pytest

from tests.libraries.running import needs, on_cpu, on_xla

pytestmark = needs("accelerate")

# float32 in another order of additions, over 32 steps of training
CLOSE = {"rel": 1e-5, "abs": 1e-6}


def check(found, expected, processes, **tolerance):
    assert (found["device"], found["processes"]) == ("xla", processes)
    assert found["losses"] == pytest.approx(expected["losses"], **(tolerance or CLOSE))
    assert found["rates"] == expected["rates"]
    assert found["metric"] == pytest.approx(expected["metric"], **(tolerance or CLOSE))
    assert found["samples"] == expected["samples"]
    assert found["saved"] == expected["saved"]
    assert all(found["saved"].values())
    assert found["resumed"]


@pytest.fixture(scope="module")
def cpu(tmp_path_factory):
    return on_cpu("accelerated.py", "here", ".", folder=tmp_path_factory.mktemp("cpu"))


def test_one_process(cpu, tmp_path):
    xla = on_xla("accelerated.py", "here", ".", folder=tmp_path)
    check(xla.found, cpu, 1)
    assert xla.per_step(5, 8) == [(1, 0)] * 3  # the end of the first epoch
    assert xla.per_step(11, 17) == [(1, 0)] * 6  # the second epoch


@pytest.mark.long
def test_bfloat16(cpu, tmp_path):
    """Autocast's result is near that of the CPU's autocast, and is not that of float32."""
    host = on_cpu("accelerated.py", "here", "cpu", "bf16", folder=tmp_path)
    xla = on_xla("accelerated.py", "here", "xla", "bf16", folder=tmp_path).found
    check(xla, host, 1, rel=2e-3)
    assert xla["losses"][0] != pytest.approx(cpu["losses"][0], **CLOSE)


def test_two_ranks_by_spawn(cpu, tmp_path):
    check(on_xla("accelerated.py", "spawn", ".", folder=tmp_path, devices=2).found, cpu, 2)


@pytest.mark.long
def test_two_ranks_by_notebook_launcher(cpu, tmp_path):
    check(on_xla("accelerated.py", "notebook", ".", folder=tmp_path).found, cpu, 2)


@pytest.mark.long
def test_two_ranks_by_torchrun(cpu, tmp_path):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    check(on_xla("accelerated.py", "here", ".", folder=tmp_path, launcher=launcher).found, cpu, 2)
