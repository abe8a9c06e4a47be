"""Lazy execution: what runs when, what is compiled again, what is donated, and that nothing readable is lost."""

from __future__ import annotations

import threading
import time

import jax
import pytest
import torch

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.compilation import compiler, linearization
from lazy_runtime.ir import lifetimes
from lazy_runtime.ops import registry
from lazy_runtime.platform import xla_devices
from lazy_runtime.tensor.xla_tensor import unwrap
from lazy_runtime.torch_xla.experimental import eager_mode_context


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
            with pytest.raises(RuntimeError, match="this lowering always fails"):
                tensor.tolist()
        lazy_runtime.sync()
        assert (before + after).tolist() == [8, 8, 8]
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


def negative_class():
    return torch.nn.functional.one_hot(torch.tensor([0, -1]).to("xla"), 3)


def not_positive():
    return torch.linalg.cholesky(-torch.eye(3, device="xla"))


def out_of_range():
    return torch.ones(3, device="xla")[torch.tensor([7], device="xla")]


def no_probability():
    return torch.multinomial(torch.zeros(3, device="xla"), 2)


FAILS = [negative_class, not_positive, out_of_range, no_probability]


@pytest.mark.parametrize("fails", FAILS)
@pytest.mark.parametrize("mode", ["lazy", "eager", "openxla"])
def test_a_failed_check_is_raised_once(mode, fails):
    x = torch.ones(3, device="xla")
    kept = []
    call = torch.compile(fails, backend="openxla") if mode == "openxla" else fails

    def run():
        kept.append(call())
        lazy_runtime.sync(wait=True)

    with eager_mode_context(mode == "eager"):
        with pytest.raises((RuntimeError, IndexError)):
            run()
        for _ in range(2):
            assert (x + 1).tolist() == [2, 2, 2]
            lazy_runtime.sync(wait=True)
    assert not xla_devices.get(0).pending


class Fails:
    """Stands for an executable that fails before it has begun, for as long as `error` is there."""

    def __init__(self, executable, failure):
        self._executable = executable
        self._failure = failure

    def __getattr__(self, name):
        return getattr(self._executable, name)

    def __call__(self, *arguments, **named):
        if self._failure:
            raise self._failure[0]
        return self._executable(*arguments, **named)


@pytest.fixture
def failure(monkeypatch):
    """A list; what stands in it is raised by every program that has a product of matrices."""
    compile, raised = compiler.executable, []

    def executable(graph, *arguments, **named):
        found = compile(graph, *arguments, **named)
        return Fails(found, raised) if any(call.name == "aten::mm" for call in graph.calls) else found

    monkeypatch.setattr(compiler, "executable", executable)
    return raised


@pytest.mark.parametrize("mode", ["lazy", "eager"])
def test_a_program_that_cannot_be_executed_is_met_by_nobody_else(failure, mode):
    x, weight = torch.ones(4, 4, device="xla"), torch.ones(4, device="xla")
    lazy_runtime.sync(wait=True)
    failure.append(jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"))
    with eager_mode_context(mode == "eager"):
        beside = weight * 3
        weight.add_(1)
        products = []

        def run():
            products.append(x @ x)
            lazy_runtime.sync()

        with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
            run()
        lazy_runtime.sync()
        assert (x + 1).sum().item() == 32
        assert beside.tolist() == [3] * 4
        assert weight.tolist() == [2] * 4
        for product in products:  # lazily there is one, with the error
            more = product + 1
            for tensor in (product, more):
                with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
                    tensor.tolist()
            failure.clear()  # there is memory again
            assert more.tolist() == [[5] * 4] * 4
            assert product.tolist() == [[4] * 4] * 4


def test_what_a_failed_program_reads_is_not_donated(failure):
    x = torch.eye(4, device="xla")
    lazy_runtime.sync()
    failure.append(MemoryError())
    product = x @ x
    x.mul_(2)
    with pytest.raises(MemoryError):
        lazy_runtime.sync()
    assert x.sum().item() == 8
    failure.clear()
    assert product.sum().item() == 4


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_interrupt_loses_nothing(failure, monkeypatch, moment):
    x = torch.ones(4, 4, device="xla")
    y = x @ x
    beside = x + 1
    if moment == "before":
        failure.append(KeyboardInterrupt())
    else:

        def bound(count):
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(lifetimes, "bound", bound)
    with pytest.raises(KeyboardInterrupt):
        lazy_runtime.sync()
    failure.clear()
    metrics.clear()
    lazy_runtime.sync()
    assert metrics.value("ExecuteComputation") == (moment == "before")
    assert y.tolist() == [[4] * 4] * 4
    assert beside.tolist() == [[2] * 4] * 4


def meanwhile(monkeypatch, record):
    """Has something recorded while a program is numbered, as another thread would."""
    number = linearization.needed_nodes

    def needed_nodes(*arguments):
        monkeypatch.undo()
        record()
        return number(*arguments)

    monkeypatch.setattr(linearization, "needed_nodes", needed_nodes)


def test_what_is_recorded_meanwhile_finds_what_it_reads(monkeypatch):
    x = torch.ones(3, device="xla")
    held = [x + 1]
    results = []

    def record():
        results.append(held.pop() * 2)

    meanwhile(monkeypatch, record)
    lazy_runtime.sync()
    assert xla_devices.get(0).pending
    assert results[0].tolist() == [4, 4, 4]
    assert x.tolist() == [1, 1, 1]


def test_what_is_recorded_meanwhile_keeps_its_buffer(monkeypatch):
    held = [torch.full((3,), 2.0, device="xla")]
    lazy_runtime.sync()
    other = held[0] + 1
    results = []

    def record():
        results.append(held.pop() * 2)

    meanwhile(monkeypatch, record)
    lazy_runtime.sync()
    assert results[0].tolist() == [4, 4, 4]
    assert other.tolist() == [3, 3, 3]
