"""A read by one thread leaves what another one records whole."""

from __future__ import annotations

import _thread
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.compilation import compiler
from lazy_runtime.execution import recorders
from lazy_runtime.platform import xla_devices
from lazy_runtime.recording import dispatch
from lazy_runtime.tensor import xla_tensor as tensor


@pytest.fixture
def other() -> Iterator[Callable[[Callable[[], Any]], Any]]:
    """Another thread, which does one thing at a time when it is asked to, and lives meanwhile."""
    lazy_runtime.sync()
    with ThreadPoolExecutor(1) as pool:
        yield lambda action: pool.submit(action).result(timeout=60)


def pending() -> list[str]:
    return [node.call.name for node in xla_devices.get(0).pending]


def made(number: float) -> torch.Tensor:
    x = torch.full((3,), float(number), device="xla")
    lazy_runtime.sync()
    return x


@pytest.fixture(params=["native", "python"])
def recording(request, monkeypatch):
    """Recorded by C++, and by Python alone."""
    if request.param == "python":
        monkeypatch.setattr(tensor.XLATensor, "__torch_dispatch__", classmethod(dispatch.dispatch))


def beginning(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() + 1).cos()


def ending(x: torch.Tensor) -> float:
    return (x * 2).exp().sum().item()


def test_equal_graphs_of_threads_are_one_program(other, recording):
    x, y = made(1), made(2)
    expected = [ending(beginning(torch.full((3,), number))) for number in (1.0, 2.0)]
    compiler.clear()
    metrics.clear()
    for _ in range(4):  # the other thread is in the middle of its graph when this one reads
        begun = other(lambda: beginning(x))
        assert ending(beginning(y)) == pytest.approx(expected[1], rel=1e-5)
        assert pending() == ["aten::sin", "aten::add.Tensor", "aten::cos"]
        assert other(lambda: ending(begun)) == pytest.approx(expected[0], rel=1e-5)  # noqa: B023
    assert metrics.value("UncachedCompile") == 1


def test_what_another_thread_records_is_computed_where_it_is_read(other, recording):
    x = made(1)
    y = other(lambda: x + 1)
    kept = other(lambda: x + 5)
    z = y * 2
    assert z.tolist() == [4, 4, 4]
    assert pending() == ["aten::add.Tensor"]
    assert kept.tolist() == [6, 6, 6]
    assert y.tolist() == [2, 2, 2]
    assert pending() == []


def test_what_others_read_is_kept(other, recording):
    x = made(1)
    y = x + 1
    z = other(functools.partial(torch.mul, y, 3))
    del y
    assert (made(2) + 1).tolist() == [3, 3, 3]
    w = x + 7
    assert w.tolist() == [8, 8, 8]
    del x
    assert z.tolist() == [6, 6, 6]


def test_a_sync_executes_what_threads_without_steps_have_recorded(other, recording):
    x = made(1)
    kept = other(lambda: x + 1)
    own = made(2) + 1
    lazy_runtime.sync()
    assert pending() == []
    assert kept.tolist() == [2, 2, 2]
    assert own.tolist() == [3, 3, 3]


def test_threads_that_sync_have_steps_of_their_own(other, recording):
    """One's sync comes where the other's graph is half recorded; forward and backward passes are one program."""

    def begin(number: float) -> tuple[torch.Tensor, torch.Tensor]:
        x = made(number).requires_grad_()
        return x, beginning(x)

    def middle(y: torch.Tensor) -> None:
        ((y * 2).exp()).sum().backward()

    def end(x: torch.Tensor) -> list[float]:
        with torch.no_grad():
            x -= x.grad
        lazy_runtime.sync()
        return x.tolist()

    def step(number: float) -> list[float]:
        x, y = begin(number)
        middle(y)
        return end(x)

    expected = [step(1), other(lambda: step(2))]
    compiler.clear()
    metrics.clear()
    for _ in range(3):
        x, y = begin(1)
        u, v = other(lambda: begin(2))
        middle(y)
        other(lambda: middle(v))  # noqa: B023
        assert end(x) == expected[0]
        assert other(lambda: end(u)) == expected[1]  # noqa: B023
    assert metrics.value("UncachedCompile") == 3  # of two numbers that fill a tensor, and of the step


def test_others_may_begin_with_steps_at_any_moment(other):
    x = made(1)
    other(lambda: made(2))
    done = threading.Event()

    def begin():
        lazy_runtime.sync()
        done.wait(timeout=60)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=begin) for _ in range(200)]
        starter = threading.Thread(target=lambda: [thread.start() for thread in threads])
        starter.start()
        while starter.is_alive():
            x += 1
            lazy_runtime.sync()
    finally:
        sys.setswitchinterval(interval)
        done.set()
    for thread in threads:
        thread.join()


def test_a_thread_that_has_ended_leaves_its_graph_to_others(recording):
    x, found = made(1), []
    thread = threading.Thread(target=lambda: found.append(x + 1))
    thread.start()
    thread.join()
    assert recorders.several
    assert (x + 2).tolist() == [3, 3, 3]
    assert pending() == []


def test_what_nobody_can_read_does_not_stay(other, recording):
    x = made(1)
    other(lambda: [(x + n) * 2 for n in range(50)].clear())
    assert len(pending()) == 100
    assert (x + 2).tolist() == [3, 3, 3]
    assert pending() == []


def test_what_a_thread_of_autograd_records_goes_with_its_readers(recording):
    """It is none of Python's own, even where Python has met it."""
    x, found = made(1), []
    thread = _thread.start_new_thread(lambda: found.append((threading.current_thread(), x + 1)), ())
    while not found:
        time.sleep(0.001)
    assert thread in {each.ident for each in threading.enumerate()}
    assert (x + 2).tolist() == [3, 3, 3]
    assert pending() == []


def test_a_compiled_training_step_leaves_others_alone(other):
    model = torch.nn.Linear(3, 2).to("xla")
    compiled = torch.compile(model, backend="openxla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = made(1)
    kept = other(lambda: (x + 1) * 3)
    for _ in range(3):
        compiled(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert pending() == ["aten::add.Tensor", "aten::mul.Tensor"]
    assert kept.tolist() == [6, 6, 6]
