"""What is larger than the device's memory is refused with its sizes and the user's line; what fits is not."""

from __future__ import annotations

import jax
import pytest
import torch

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.compilation import capacity, compiler
from lazy_runtime.platform import xla_devices

MB = 1 << 20


@pytest.fixture
def memory(monkeypatch):
    """Gives the device so many bytes of memory."""

    def give(size):
        capacity._known.cache_clear()
        monkeypatch.setattr(capacity, "of", lambda device: size)

    yield give
    capacity._known.cache_clear()


@pytest.mark.parametrize("make", [torch.rand, torch.zeros, torch.empty])
def test_a_tensor_that_no_machine_holds(make):
    with pytest.raises(
        RuntimeError, match=r"float32\[1024,1024,1024,1024\].* takes 4 TiB, and xla:0 has .*iB of memory"
    ) as error:
        make(1024, 1024, 1024, 1024, device="xla").sum()
    assert isinstance(error.value, torch.OutOfMemoryError)
    assert "test_capacity.py" in str(error.value)
    assert torch.ones(3, device="xla").tolist() == [1, 1, 1]


def test_a_product_that_no_machine_holds():
    x = torch.ones(1 << 22, 1, device="xla")
    with pytest.raises(torch.OutOfMemoryError, match="aten::mm makes a tensor"):
        x @ x.t()
    compiled = torch.compile(lambda x: (x @ x.t()).sum(), backend="openxla")
    with pytest.raises(RuntimeError, match="64 TiB"):
        compiled(x)


def test_views_take_no_memory():
    x = torch.ones(1, device="xla")
    held = x.expand(1 << 44)
    assert held.shape == (1 << 44,)
    with pytest.raises(torch.OutOfMemoryError, match=r"a program takes 64 TiB .* 64 TiB of results"):
        lazy_runtime.sync()  # a result of its own
    assert (x + 1).item() == 2
    del held


def test_results_together(memory):
    x = torch.ones(MB, device="xla")
    lazy_runtime.sync()
    metrics.clear()
    memory(10 * MB)
    kept = [x * number for number in (3, 4, 5)]
    with pytest.raises(torch.OutOfMemoryError, match="the 3 results of a program take 12 MiB, and xla:0 has 10 MiB"):
        lazy_runtime.sync()
    assert metrics.value("ExecuteComputation") == 0
    del kept[1:]  # it fits now, and nothing was lost
    assert kept[0].sum().item() == 3 * MB


def test_a_program_with_what_lies_in_between(memory):
    x = torch.ones(MB, device="xla")
    lazy_runtime.sync()
    memory(10 * MB)
    y = (x.sort().values.cumsum(0).sort().values * x).cumsum(0).sum()

    class Planned:
        class Sizes:
            argument_size_in_bytes, output_size_in_bytes = 4 * MB, 4
            temp_size_in_bytes, alias_size_in_bytes = 20 * MB, 0

        def memory_analysis(self):
            return self.Sizes

    graph = next(iter(compiler._executables))[0]
    with pytest.raises(
        torch.OutOfMemoryError, match=r"a program takes 24 MiB \(4 MiB of inputs, 4 B of results, 20 MiB in"
    ):
        capacity.refuse_program(graph, Planned())
    memory(100 * MB)
    capacity.refuse_program(graph, Planned())
    assert y.item() > 0


def test_limits_that_are_raised_are_seen(memory, monkeypatch):
    memory(10)
    device = xla_devices.get(0)
    assert capacity._exceeds(device, 20) == 10
    monkeypatch.setattr(capacity, "of", lambda device: 30)
    assert capacity._exceeds(device, 20) is None


def test_the_limits_of_the_system(tmp_path, monkeypatch):
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    inner = groups / "user" / "job"
    (proc / "self").mkdir(parents=True)
    inner.mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal:  1000 kB\nMemFree: 10 kB\nSwapTotal: 24 kB\n")
    (proc / "self" / "cgroup").write_text("0::/user/job\n")
    monkeypatch.setattr(capacity, "_PROC", proc)
    monkeypatch.setattr(capacity, "_CGROUPS", groups)
    device = xla_devices.get(0)
    assert jax.devices()[0].platform == "cpu"
    assert capacity.of(device) == 1024 * 1024
    (inner / "memory.max").write_text("max\n")
    (groups / "user" / "memory.max").write_text("5000\n")
    assert capacity.of(device) == 1024 * 1024  # what cannot be in memory may be in swap space
    (groups / "user" / "memory.swap.max").write_text("1000\n")
    assert capacity.of(device) == 6000
