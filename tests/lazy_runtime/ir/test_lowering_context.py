"""What a lowering may read of the program that it becomes a part of."""

from __future__ import annotations

import threading

import pytest

from lazy_runtime.ir import lowering_context
from lazy_runtime.ir.lowering_context import LoweringContext


def test_outside_of_a_program_the_defaults_hold():
    assert lowering_context.current() == LoweringContext()
    assert lowering_context.current().precision == "highest"
    assert not lowering_context.current().narrows


def test_contexts_nest_and_keep_what_is_not_changed():
    with lowering_context.changed(precision="medium", is_sharded=True) as outer:
        with lowering_context.changed(precision="high") as inner:
            assert (inner.precision, inner.is_sharded) == ("high", True)
            assert lowering_context.current() is inner
        assert lowering_context.current() is outer
    assert lowering_context.current() == LoweringContext()


def test_a_context_ends_with_an_error():
    def fail():
        with lowering_context.changed(narrows=True):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not lowering_context.current().narrows


def test_a_context_is_its_thread_s_own():
    found = []
    thread = threading.Thread(target=lambda: found.append(lowering_context.current().precision))
    with lowering_context.changed(precision="medium"):
        thread.start()
        thread.join()
    assert found == ["highest"]


def test_nothing_can_be_left_behind_in_a_context():
    with lowering_context.changed(narrows=True) as context, pytest.raises(AttributeError):
        context.narrows = False
    with pytest.raises(TypeError, match="unknown"), lowering_context.changed(unknown=1):
        pass
