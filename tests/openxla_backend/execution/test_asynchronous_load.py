"""Programs that are on disk are loaded, and first calls run, in another thread."""

from __future__ import annotations

import threading

import pytest
import torch

import lazy_runtime
from lazy_runtime.cache import disk_cache, disk_program
from lazy_runtime.common import metrics
from lazy_runtime.compilation import compiler
from openxla_backend.execution import asynchronous_load


@torch.no_grad()
def result_of_a_new_process(layer, x):
    """What a model gives when nothing is in memory."""
    torch._dynamo.reset()
    compiler.clear()
    return torch.compile(layer, backend="openxla")(x).cpu()


@pytest.fixture
def layer():
    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).eval().to("xla")
    lazy_runtime.sync(wait=True)
    return layer


def test_another_thread_loads(store, layer, monkeypatch):
    x = torch.randn(2, 3).to("xla")
    expected = result_of_a_new_process(layer, x)
    threads = []
    load = disk_program.load

    def noting(*arguments):
        threads.append(threading.current_thread())
        return load(*arguments)

    monkeypatch.setattr(disk_program, "load", noting)
    before = metrics.value("UncachedCompile")
    torch.testing.assert_close(result_of_a_new_process(layer, x), expected, rtol=0, atol=0)
    assert metrics.value("UncachedCompile") == before
    assert len(threads) == 2
    assert threading.main_thread() not in threads


def test_what_does_not_load_is_compiled(store, layer):
    x = torch.randn(2, 3).to("xla")
    expected = result_of_a_new_process(layer, x)
    for file in store.path.glob("*.xla"):
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.warns(RuntimeWarning, match="cannot be used and is compiled again"):
        found = result_of_a_new_process(layer, x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("is_off", [False, True])
def test_the_disk_is_asked_once_for_each_program(store, layer, monkeypatch, is_off):
    asked = []
    find = disk_cache.find

    def noting(*arguments):
        asked.append(arguments)
        return None if is_off else find(*arguments)

    monkeypatch.setattr(disk_cache, "find", noting)
    result_of_a_new_process(layer, torch.randn(2, 3).to("xla"))
    assert len(asked) == len({graph for graph, *_ in asked}) == 2


def test_errors_come_with_the_result():
    def fail():
        raise ValueError("in the thread")

    future = asynchronous_load.start(fail)
    with pytest.raises(ValueError, match="in the thread"):
        future.result()
