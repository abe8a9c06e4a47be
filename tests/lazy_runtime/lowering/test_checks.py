"""What programs check while they run, and the exceptions that users get for it."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from lazy_runtime.common import metrics
from lazy_runtime.compilation import lower
from lazy_runtime.ir import dtypes
from lazy_runtime.lowering import checks
from tests.lazy_runtime.graphs import buffers, number


def negative(value):
    return ValueError(f"{value} is negative")


def out_of_range(value):
    return IndexError(f"{value} is out of range")


def checked(function, *arrays):
    """What a compiled program says of its checks, and the checks."""
    found = []

    def program(*arrays):
        with checks.collecting() as collector:
            function(*map(jnp.asarray, arrays))
        found.extend(collector.checks)
        return collector.flag()

    with dtypes.x64():
        flag = jax.jit(program)(*map(np.array, arrays))
    return flag, found


def failure(function, *arrays):
    """The error that the program would raise, in words; None if all is well."""
    flag, found = checked(function, *arrays)
    first, value = flag.tolist()
    return None if first < 0 else str(found[first].error(value))


@pytest.fixture
def graph():
    """Of two operators."""
    (x,) = buffers(torch.ones(3))
    return number(lambda x: x.exp().sin(), x)[0].graph


def execution(graph, flag=None, found=(), lines=None, **others):
    return checks.Execution(jnp.zeros(()), flag, found, graph, lines or {}, flag is not None, **others)


# ---- in a program


def test_the_first_check_that_fails_is_told():
    def function(x):
        for position in range(3):
            checks.require(x[position] >= 0, negative, x[position])

    assert failure(function, [1, 2, 3]) is None
    assert failure(function, [1, -2, -3]) == "-2 is negative"
    assert failure(function, [1, 2, -(2**40)]) == f"{-(2**40)} is negative"


def test_a_check_without_a_value_has_0():
    assert failure(lambda x: checks.require(x > 0, negative), -5) == "0 is negative"


@pytest.mark.parametrize(
    ("index", "lowest", "expected"),
    [
        ([[0, 1], [2, -3]], None, None),
        ([[0, 3], [5, 1]], None, "3 is out of range"),
        ([0, -4, 7], None, "-4 is out of range"),
        ([0, 2], 0, None),
        ([2, -1], 0, "-1 is out of range"),
    ],
)
def test_the_first_index_that_is_out_of_range_is_told(index, lowest, expected):
    assert failure(lambda x: checks.in_range(x, 3, out_of_range, lowest), index) == expected


def test_no_index_is_never_out_of_range():
    with checks.collecting() as collector:
        checks.in_range(np.zeros((0, 2), np.int64), 0, out_of_range)
    assert collector.checks == []


def test_outside_of_a_program_nothing_is_checked():
    checks.require(False, negative)
    assert checks.current_call() == 0


def test_a_check_belongs_to_the_call_that_is_lowered():
    with dtypes.x64(), checks.collecting() as collector:
        for call in (3, 5):
            collector.call = call
            assert checks.current_call() == call
            checks.require(True, negative)
    assert [check.call for check in collector.checks] == [3, 5]


def test_calls_of_a_nested_graph_have_numbers_of_their_own():
    with checks.collecting() as collector:
        collector.call = 7
        with collector.nested() as number_of:
            numbers = [number_of(inner) for inner in range(3)]
            collector.call = numbers[2]
        assert collector.call == 7
    mask = (1 << checks.NESTED) - 1
    assert [(each & mask, (each >> checks.NESTED) - 1) for each in numbers] == [(7, 0), (7, 1), (7, 2)]


def test_checks_of_a_lowering_that_was_given_up_are_forgotten():
    def function(x):
        checks.require(x[0] >= 0, negative, x[0])
        known = len(checks.current().checks)
        checks.require(x[1] >= 0, negative, x[1])
        checks.current().forget(known)
        checks.require(x[2] >= 0, negative, x[2])

    assert failure(function, [1, -2, 3]) is None
    assert failure(function, [1, -2, -3]) == "-3 is negative"


def test_a_program_within_a_program_checks_for_itself():
    with dtypes.x64(), checks.collecting() as outer:
        with checks.collecting() as inner:
            checks.require(True, negative)
        assert checks.current() is outer
    assert (len(inner.checks), len(outer.checks)) == (1, 0)


def test_a_collector_is_its_threads_own():
    found = []

    def elsewhere():
        found.append(checks.current_call())
        checks.require(False, negative)

    with checks.collecting() as collector:
        collector.call = 3
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert (found, collector.checks) == ([0], [])


# ---- after a program


def test_a_failed_check_names_the_operator_and_the_line(graph):
    def function(x):
        checks.current().call = 1
        checks.require(x >= 0, negative, x)

    flag, found = checked(function, -5)
    with pytest.raises(ValueError, match=r"^-5 is negative\n  aten::sin, called at train\.py:3$"):
        execution(graph, flag, found, {1: "train.py:3"}).finish()
    with pytest.raises(ValueError, match=r"^-5 is negative\n  aten::sin$"):
        execution(graph, flag, found, {0: "train.py:2"}).finish()


def test_a_check_in_a_nested_graph_names_the_operator_in_it(graph):
    outer = graph._replace(calls=(graph.calls[0], lower.nested_call(graph, {1: "model.py:9"})))

    def function(x):
        collector = checks.current()
        collector.call = 1
        with collector.nested() as number_of:
            collector.call = number_of(1)
            checks.require(x >= 0, negative, x)

    flag, found = checked(function, -5)
    with pytest.raises(ValueError, match=r"aten::sin, called at model\.py:9$"):
        execution(outer, flag, found, {1: "train.py:3"}).finish()


def test_a_program_whose_checks_hold_raises_nothing(graph):
    flag, found = checked(lambda x: checks.require(x >= 0, negative, x), 5)
    execution(graph, flag, found).finish()


def test_an_execution_whose_results_were_donated_is_done(graph):
    donated = execution(graph)
    donated.marker.delete()
    assert donated.is_done
    donated.finish()


def test_the_time_of_an_execution_ends_where_a_compile_begins(graph, monkeypatch):
    monkeypatch.setattr(checks, "compile_began", 1_000)
    metrics.clear()
    execution(graph, began=400).record_time()
    assert [sample for _when, sample in metrics.snapshot()[1]["ExecuteTime"].samples] == [600]


def test_an_execution_without_a_beginning_has_no_time(graph):
    metrics.clear()
    execution(graph).record_time()
    assert "ExecuteTime" not in metrics.snapshot()[1]


# ---- errors of kernels


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("IndexError", IndexError),
        ("ValueError", ValueError),
        ("TypeError", TypeError),
        ("NotImplementedError", NotImplementedError),
        ("LinAlgError", torch.linalg.LinAlgError),
        ("RuntimeError", RuntimeError),
        ("SomethingElse", RuntimeError),
    ],
)
def test_a_kernels_error_keeps_its_type(graph, kind, expected):
    found = checks.kernel_error(RuntimeError(f"INTERNAL: [aten #1 {kind}] singular matrix [end] at 0x1"), graph)
    assert found.call == 1
    assert type(found.meaning) is expected
    assert str(found.meaning) == "singular matrix\n  aten::sin"


def test_a_kernels_message_may_have_several_lines(graph):
    found = checks.kernel_error(RuntimeError("[aten #0 ValueError] one\ntwo [end]"), graph, {0: "train.py:2"})
    assert str(found.meaning) == "one\ntwo\n  aten::exp, called at train.py:2"


def test_a_kernels_error_in_a_nested_graph_is_of_the_outer_call(graph):
    outer = graph._replace(calls=(graph.calls[0], lower.nested_call(graph, {})))
    call = 1 + (1 << checks.NESTED)
    found = checks.kernel_error(RuntimeError(f"[aten #{call} ValueError] bad [end]"), outer)
    assert found.call == 1
    assert str(found.meaning) == "bad\n  aten::exp"


def test_other_errors_have_no_meaning(graph):
    assert checks.kernel_error(RuntimeError("out of memory"), graph) is None
