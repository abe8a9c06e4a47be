"""Loaders that move batches in the background."""

from __future__ import annotations

import gc
import threading
import time
import traceback

import pytest
import torch

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.torch_xla.debug import profiler
from lazy_runtime.torch_xla.distributed.data_parallel import ParallelLoader as OldName
from lazy_runtime.torch_xla.distributed.parallel_loader import MpDeviceLoader, ParallelLoader, PerDeviceLoader
from lazy_runtime.torch_xla.utils.utils import SampleGenerator


def batches(count):
    return [(torch.full((2,), float(n)), {"label": torch.tensor([n])}) for n in range(count)]


def workers():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("xla-")]


def test_options_that_libraries_set_after_a_loader_is_made():
    loader = MpDeviceLoader(batches(4), "xla")
    assert loader._parallel_loader_kwargs == {}
    loader._parallel_loader_kwargs["batches_per_execution"] = 4
    metrics.clear()
    sums = [x + 1 for x, _ in loader]
    assert len(sums) == 4
    assert metrics.value("ExecuteComputation") == 1
    loader._parallel_loader_kwargs["input_sharding"] = object()
    with pytest.raises(RuntimeError, match="call runtime"):
        iter(loader)


def test_batches_arrive_in_order_on_the_device_in_each_epoch():
    loader = MpDeviceLoader(batches(5), "xla")
    assert len(loader) == 5
    for _ in range(2):
        found = list(loader)
        assert [x.device for x, _ in found] == [torch.device("xla:0")] * 5
        assert [x[0].item() for x, _ in found] == [0, 1, 2, 3, 4]
        assert [y["label"].item() for _, y in found] == [0, 1, 2, 3, 4]
    assert not workers()


@pytest.mark.parametrize(("per_execution", "executions"), [(1, 5), (2, 3), (10, 1)])
def test_a_step_ends_after_so_many_batches(per_execution, executions):
    total = torch.zeros(2, device="xla")
    lazy_runtime.sync()
    metrics.clear()
    for x, _ in MpDeviceLoader(batches(5), "xla", batches_per_execution=per_execution):
        total = total + x
    assert metrics.value("ExecuteComputation") == executions
    assert total.tolist() == [10, 10]
    assert metrics.value("ExecuteComputation") == executions


def test_a_traced_step_ends_once():
    total = torch.zeros(2, device="xla")
    with profiler.StepTrace("elsewhere"):
        pass
    lazy_runtime.sync()
    metrics.clear()
    for x, _ in MpDeviceLoader(batches(3), "xla"):
        with profiler.StepTrace("step"):
            total = total + x
    assert (metrics.value("MarkStep"), metrics.value("ExecuteComputation")) == (1 + 3, 3)
    for x, _ in MpDeviceLoader(batches(3), "xla"):
        with profiler.StepTrace("step"):
            total = total + x
        total = total * 2  # what comes after it is executed too
    assert metrics.value("ExecuteComputation") == 3 + 6
    assert total[0].item() == (((3 + 0) * 2 + 1) * 2 + 2) * 2


def test_what_was_pending_before_is_no_part_of_the_first_step():
    x = torch.ones(2, device="xla") + 3
    metrics.clear()
    iterator = iter(MpDeviceLoader(batches(2), "xla"))
    next(iterator)
    assert metrics.value("ExecuteComputation") == 1
    assert x.tolist() == [4, 4]
    iterator.close()


def test_an_exception_is_raised_in_the_consumer_with_its_traceback():
    def broken():
        yield torch.ones(1)
        raise KeyError("mine")

    seen = []
    with pytest.raises(KeyError, match="mine") as caught:
        seen.extend(MpDeviceLoader(broken(), "xla"))
    assert "broken" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert len(seen) == 1
    assert not workers()


def test_an_exception_of_the_transfer():
    unknown = torch.ones(1).to(torch.float8_e8m0fnu)
    iterator = iter(MpDeviceLoader([torch.ones(1), unknown], "xla"))
    assert next(iterator).item() == 1
    with pytest.raises(TypeError, match="has no counterpart in XLA"):
        next(iterator)
    assert not workers()


def test_a_consumer_that_breaks_off_leaves_no_thread():
    def endless():
        while True:
            yield torch.ones(1)

    for _ in MpDeviceLoader(endless(), "xla", loader_prefetch_size=2, device_prefetch_size=2):
        assert workers()
        break
    gc.collect()
    assert not workers()


def test_it_reads_ahead_but_not_further_than_it_may():
    read = []

    def slow():
        for n in range(50):
            read.append(n)
            yield torch.tensor([n])

    iterator = iter(MpDeviceLoader(slow(), "xla", loader_prefetch_size=3, device_prefetch_size=2))
    assert next(iterator).item() == 0
    for _ in range(100):
        before = len(read)
        time.sleep(0.02)
        if len(read) == before and before > 4:
            break
    assert 4 < len(read) <= 1 + 2 + 1 + 3 + 1 + 1  # given, moved, in hand, read, in hand, being read
    iterator.close()
    assert not workers()
    with pytest.raises(StopIteration):
        next(iterator)


def test_parallel_loader():
    assert OldName is ParallelLoader
    loader = ParallelLoader(batches(4), ["xla:0"], host_to_device_transfer_threads=2)
    each = loader.per_device_loader("xla:0")
    assert len(each) == loader.per_device_samples() == 4
    assert sorted(x[0].item() for x, _ in each) == [0, 1, 2, 3]
    assert not workers()


def test_arguments():
    with pytest.raises(ValueError, match="batches_per_execution must be at least 1, got 0"):
        ParallelLoader([], ["xla"], batches_per_execution=0)
    with pytest.raises(ValueError, match="different devices"):
        ParallelLoader([], ["xla", "xla:0"])
    with pytest.raises(RuntimeError, match="use_spmd"):
        ParallelLoader([], ["xla"], input_sharding=1)
    with pytest.raises(RuntimeError, match="expected an xla device"):
        MpDeviceLoader([], "cpu")


def test_attributes_are_the_wrapped_loaders():
    loader = MpDeviceLoader(torch.utils.data.DataLoader([1, 2, 3], batch_size=2), "xla")
    assert (loader.batch_size, len(loader)) == (2, 2)
    with pytest.raises(AttributeError, match="nor the loader that it wraps"):
        loader.nothing  # noqa: B018


def test_training_with_generated_samples():
    layer = torch.nn.Linear(3, 2).to("xla")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    data = SampleGenerator(data=(torch.ones(4, 3), torch.zeros(4, 2)), sample_count=6)
    losses = []
    for x, target in MpDeviceLoader(data, "xla"):
        optimizer.zero_grad()
        loss = (layer(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    values = [loss.item() for loss in losses]
    assert len(values) == 6
    assert values == sorted(values, reverse=True)


def test_batches_can_be_sent_by_hand():
    loader = ParallelLoader([], ["xla:0"])
    sent, other = loader.send_cpu_data_to_device([[torch.ones(2)], {"x": torch.zeros(1)}], "xla:0")
    assert sent[0].device == other["x"].device == torch.device("xla:0")
    loader.close()


def test_batches_one_by_one():
    loader = ParallelLoader(batches(3), ["xla:0"], batches_per_execution=2)
    device = torch.device("xla:0")
    x, rest = loader.next_item(device)
    assert (x.device, x.tolist(), rest["label"].item()) == (device, [0, 0], 0)
    each = loader.per_device_loader("xla:0")
    assert isinstance(each, PerDeviceLoader)
    metrics.clear()
    assert each.next()[0].tolist() == [1, 1]  # which ends what came before
    total = torch.zeros(2, device="xla") + 5
    assert next(each)[0].tolist() == [2, 2]
    assert metrics.value("MarkStep") == 1
    assert loader.next_item(device) is None
    with pytest.raises(StopIteration):
        next(each)
    assert metrics.value("MarkStep") == 2
    assert total.tolist() == [5, 5]
    assert not workers()
