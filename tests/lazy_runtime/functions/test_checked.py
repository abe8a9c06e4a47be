"""Graphs within loops and branches: their checks come out with their results."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
import torch

from lazy_runtime.functions.checked import CheckedGraph, first_failed, nothing_failed
from lazy_runtime.ir import dtypes
from lazy_runtime.lowering import checks
from tests.lazy_runtime.graphs import buffers, number


def gathering(index):
    """A graph that takes the rows of these numbers, evaluated; what it gives and its flag, and the checks around it."""
    x, places = buffers(torch.arange(6.0).reshape(3, 2), torch.tensor(index))
    numbered, _kept = number(lambda x, places: torch.ops.aten.index_select(x, 0, places), x, places)
    graph = CheckedGraph(numbered.graph)
    leaves = [value.array for value in numbered.leaves]
    with dtypes.x64(), checks.collecting() as around:
        around.call = 5
        (found,), flag = graph.evaluated(leaves)
        graph.require(flag)
    return found, flag, graph, around


def test_results_come_with_the_flag_of_a_check_that_holds():
    found, flag, graph, around = gathering([2, 0])
    assert found.tolist() == [[4, 5], [0, 1]]
    assert int(flag[0]) == -1
    assert len(graph.checks) == len(around.checks) == 1


def test_a_check_that_fails_is_handed_on_to_the_call_around_it():
    _, flag, _, around = gathering([2, 7])
    assert flag.tolist() == [0, 7]
    assert [check.call for check in around.checks] == [5]
    with dtypes.x64():
        number_, value = around.flag().tolist()
    with pytest.raises(IndexError, match="out of range"):
        raise around.checks[number_].error(value)


def test_the_first_turn_that_failed_counts():
    with dtypes.x64():
        failed, later = jnp.array((2, 9)), jnp.array((1, 4))
        turns = [nothing_failed(), failed, later]
        flag = nothing_failed()
        for turn in turns:
            flag = first_failed(flag, turn)
        assert flag.tolist() == [2, 9]
        assert jax.jit(first_failed)(nothing_failed(), nothing_failed()).tolist() == [-1, 0]
