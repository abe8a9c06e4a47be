"""Lazy execution: what runs when, what is compiled again, what is donated, and that nothing readable is lost."""

from __future__ import annotations

import threading
import time

import pytest
import torch

import lazy_runtime
from lazy_runtime import metrics, xla_devices
from lazy_runtime.ops import registry
from lazy_runtime.tensor import unwrap


def array(tensor: torch.Tensor):
    return unwrap(tensor.detach()).handle.value.array


def test_nothing_runs_before_a_sync_or_a_read():
    x = torch.ones(3, device="xla")
    y = x * 2 + 1
    assert metrics.value("ExecuteComputation") == 0
    lazy_runtime.sync()
    assert metrics.value("ExecuteComputation") == 1
    assert y.tolist() == [3, 3, 3]
    assert metrics.value("ExecuteComputation") == 1
    lazy_runtime.sync(wait=True)
    assert metrics.value("ExecuteComputation") == 1


def test_a_read_runs_all_that_is_pending():
    x = torch.ones(3, device="xla")
    y, z = x + 1, x + 2
    assert y[0].item() == 2
    executed = metrics.value("ExecuteComputation")
    assert z.tolist() == [3, 3, 3]
    assert metrics.value("ExecuteComputation") == executed == 1


def test_executables_are_found_by_structure():
    def step(x, factor):
        y = (x * factor).sin() + x
        lazy_runtime.sync()
        return y

    x = torch.rand(17, device="xla")
    lazy_runtime.sync()
    metrics.clear()
    for factor in (3.5, 4.5, 5.5):
        step(x, factor)
    assert (metrics.value("UncachedCompile"), metrics.value("CachedCompile")) == (1, 2)
    step(torch.rand(18, device="xla"), 3.5)
    assert metrics.value("UncachedCompile") == 2


def test_dead_code_is_not_computed():
    x = torch.ones(5, device="xla")
    lazy_runtime.sync()
    metrics.clear()
    for _ in range(3):
        x.exp()
    lazy_runtime.sync()
    assert metrics.value("ExecuteComputation") == 0


def test_an_optimizer_step_donates_the_old_parameters():
    layer = torch.nn.Linear(8, 8).to("xla")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    x = torch.ones(2, 8, device="xla")

    def step():
        optimizer.zero_grad()
        layer(x).sum().backward()
        optimizer.step()
        lazy_runtime.sync()

    step()
    before = [array(parameter) for parameter in layer.parameters()]
    step()
    assert all(old.is_deleted() for old in before)
    assert not any(array(parameter).is_deleted() for parameter in layer.parameters())
    assert not array(x).is_deleted()


def test_what_can_still_be_read_is_not_donated():
    x = torch.arange(8.0, device="xla")
    lazy_runtime.sync()
    detached, view, data, clone = x.detach(), x[2:4], x.data, x.clone()
    saved = x * 1
    lazy_runtime.sync()
    x.add_(1)
    lazy_runtime.sync()
    assert detached.tolist() == x.tolist() == data.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert view.tolist() == [3, 4]
    assert clone.tolist() == saved.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_a_write_reuses_the_buffer_only_if_nobody_reads_it():
    x, y = torch.arange(8.0, device="xla"), torch.arange(8.0, device="xla")
    lazy_runtime.sync()
    old = y.clone()
    buffer = array(x)
    x.add_(1)
    y.add_(1)
    lazy_runtime.sync()
    assert buffer.is_deleted()
    assert old.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert y.tolist() == x.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_tensor_saved_for_backward_survives_a_sync():
    x = torch.full((4,), 2.0, device="xla", requires_grad=True)
    y = x.exp()
    loss = (y * y).sum()
    del y
    lazy_runtime.sync()
    loss.backward()
    torch.testing.assert_close(x.grad.cpu(), 2 * torch.full((4,), 2.0).exp() ** 2)


def test_a_long_chain():
    x = torch.zeros((), device="xla")
    for _ in range(3000):
        x = x + 1
    kept = x
    del x
    assert kept.numel() == 1
    del kept  # freed without deep recursion
    lazy_runtime.sync()


def test_threads_share_the_pending_graph():
    x = torch.ones(4, device="xla")
    results, errors = {}, []

    def work(number):
        try:
            y = x
            for _ in range(20):
                y = y + number
                if number % 2:
                    lazy_runtime.sync()
            results[number] = y.tolist()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert results == {number: [1 + 20 * number] * 4 for number in range(4)}


class Donated:
    """A marker of an execution whose buffer another thread donates as soon as somebody waits for it."""

    def __init__(self, marker):
        self.marker = marker
        self.is_deleted = marker.is_deleted

    def block_until_ready(self):
        self.marker.delete()
        return self.marker.block_until_ready()


def started():
    """An execution that nobody has looked at."""
    x = torch.ones(4, device="xla") + 1
    lazy_runtime.sync(wait=True)
    y = x + 1
    lazy_runtime.sync()
    return y, xla_devices.get(0)


def test_a_marker_that_is_donated_while_it_is_waited_for():
    _, device = started()
    execution = device._running.pop()
    execution._replace(marker=Donated(execution.marker)).finish()


def test_a_marker_that_may_be_donated_is_not_looked_at():
    y, device = started()
    array(y).block_until_ready()
    with device.lock:
        thread = threading.Thread(target=device.raise_failures)
        thread.start()
        thread.join()
    assert len(device._running) == 1
    device.raise_failures()
    assert not device._running


def test_an_operator_that_cannot_be_lowered_leaves_the_rest_readable():
    def fails(x):
        raise ValueError("this lowering always fails")

    library = torch.library.Library("lazy_runtime_test", "DEF")
    library.define("fails(Tensor x) -> Tensor")
    library.impl("fails", torch.empty_like, "Meta")
    overload = torch.ops.lazy_runtime_test.fails.default
    registry.op("lazy_runtime_test::fails")(fails)
    try:
        x = torch.ones(3, device="xla")
        before = x + 1
        lost = torch.ops.lazy_runtime_test.fails(x)
        depends = lost * 2
        after = before * 3
        with pytest.raises(Exception, match="this lowering always fails"):
            lazy_runtime.sync()
        assert before.tolist() == [2, 2, 2]
        assert after.tolist() == [6, 6, 6]
        for tensor in (lost, depends):
            with pytest.raises(RuntimeError, match="the program that was to compute it failed"):
                tensor.tolist()
    finally:
        del registry.table[overload]
        library._destroy()


def test_sync_waits_for_work_that_was_started_earlier():
    x = torch.rand(900, 900, device="xla")
    y = x
    for _ in range(60):  # most of a second: this thread may lose its core for a while
        y = (y @ x).tanh()
    lazy_runtime.sync()
    result = array(y)
    assert not result.is_ready()  # started, and at work
    lazy_runtime.sync(wait=True)  # nothing is pending
    # XLA marks the results of a program as ready one after the other, within microseconds; ours waits for one of them
    seen = time.monotonic()
    while not result.is_ready() and time.monotonic() < seen + 0.15:
        pass
    assert result.is_ready()
