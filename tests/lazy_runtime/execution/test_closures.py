"""Closures at the end of a step."""

from __future__ import annotations

import threading

import pytest
import torch

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.execution import closures
from lazy_runtime.torch_xla.core import xla_model as xm


def test_they_run_after_the_step_in_order_and_execute_nothing():
    seen = []
    x = torch.ones(3, device="xla")
    for n in (1, 2):
        xm.add_step_closure(lambda v, n: seen.append((v.tolist(), n)), args=(x * n, n))
    assert not seen
    metrics.clear()
    lazy_runtime.sync()
    assert seen == [([1, 1, 1], 1), ([2, 2, 2], 2)]
    assert metrics.value("ExecuteComputation") == 1
    lazy_runtime.sync()
    assert len(seen) == 2


def test_one_that_adds_another_leaves_it_to_the_next_step():
    seen = []
    xm.add_step_closure(lambda: xm.add_step_closure(seen.append, args=(1,)))
    lazy_runtime.sync()
    assert not seen
    lazy_runtime.sync()
    assert seen == [1]


def test_an_exception_comes_out_of_sync():
    xm.add_step_closure(lambda: {}["mine"])
    with pytest.raises(KeyError, match="mine"):
        lazy_runtime.sync()
    lazy_runtime.sync()


def test_asynchronous_ones_run_on_another_thread():
    done = threading.Event()
    seen = []

    def closure(value):
        seen.append((value.item(), threading.current_thread()))
        done.set()

    xm.add_step_closure(closure, args=(torch.ones(3, device="xla").sum(),), run_async=True)
    lazy_runtime.sync()
    assert done.wait(20)
    assert seen[0][0] == 3
    assert seen[0][1] is not threading.main_thread()


def test_an_asynchronous_one_that_fails_fails_a_later_step():
    xm.add_step_closure(lambda: {}["mine"], run_async=True)
    lazy_runtime.sync()
    closures._handlers[0]._closure_event_loop.join(20)
    done = threading.Event()
    xm.add_step_closure(done.set, run_async=True)
    with pytest.raises(RuntimeError, match="previously raised") as raised:
        lazy_runtime.sync()
    assert isinstance(raised.value.__cause__, KeyError)
    xm.add_step_closure(int, run_async=True)
    lazy_runtime.sync()  # others run again
    assert done.wait(20)


def test_at_the_end_of_a_compiled_step():
    seen = []

    @lazy_runtime.compile(full_graph=True)
    def step(x):
        y = x + 1
        xm.add_step_closure(lambda v: seen.append(v.tolist()), args=(y,))
        return y

    step(torch.ones(2, device="xla"))
    assert seen == [[2, 2]]
