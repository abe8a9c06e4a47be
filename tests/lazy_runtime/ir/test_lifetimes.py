"""Tensors and device buffers that came and went, as counters see them."""

from __future__ import annotations

import gc

import pytest
import torch

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.ir import lifetimes
from lazy_runtime.ir.graph import Handle, Value

NAMES = "CreateXlaTensor", "DestroyXlaTensor", "CreateDataHandles", "DestroyDataHandles"


@pytest.fixture
def x():
    """A tensor with its buffer, before anything is counted."""
    made = torch.ones(3).to("xla")
    lazy_runtime.sync()
    gc.collect()
    metrics.clear()
    return made


def counted():
    counters, _metrics = metrics.snapshot()
    return [counters.get(name, 0) for name in NAMES]


def test_a_handle_is_alive_until_nobody_holds_it():
    gc.collect()
    before = lifetimes.alive()
    handle = Handle(Value(None, 0))
    other = handle
    assert lifetimes.alive() == before + 1
    del handle
    assert lifetimes.alive() == before + 1
    del other
    assert lifetimes.alive() == before


def test_looks_are_not_counted(x):
    before = lifetimes.alive()
    assert [lifetimes.alive() for _ in range(5)] == [before] * 5
    y = x.clone()
    assert [counted() for _ in range(3)] == [[1, 0, 0, 0]] * 3
    del y


def test_a_pending_result_is_a_tensor_without_a_buffer(x):
    y = x + 1
    assert counted() == [1, 0, 0, 0]
    lazy_runtime.sync()
    assert counted() == [1, 0, 1, 0]
    del y


def test_a_buffer_goes_with_its_tensor(x):
    y = x + 1
    lazy_runtime.sync()
    del y
    assert counted() == [1, 1, 1, 1]


def test_what_is_dropped_before_a_sync_never_had_a_buffer(x):
    y = x.exp().sin()
    lazy_runtime.sync()
    assert counted() == [2, 1, 1, 0]
    del y


def test_a_copy_to_the_device_has_its_buffer_at_once(x):
    y = torch.ones(3).to("xla")
    assert counted() == [1, 0, 1, 0]
    del y


def test_a_cleared_counter_forgets_what_was_before(x):
    y = x + 1
    lazy_runtime.sync()
    metrics.clear()
    del y
    assert counted() == [0, 1, 0, 1]
