"""Operators of a graph, those of the graphs within it in their place."""

from __future__ import annotations

import torch

from lazy_runtime.compilation import lower
from lazy_runtime.ir.flat import Flat
from tests.lazy_runtime.graphs import buffers, number


def graph_of(function, count=1):
    """The function's graph, of so many vectors."""
    return number(function, *buffers(*(torch.ones(3) for _ in range(count))))[0].graph


def names(flat):
    return [operator.call.name for operator in flat.operators]


def within(inner, outer, operands):
    """The graph that computes `inner` on the leaves of `outer`, and then `outer`.

    Args:
        operands: those of `inner`, then those of the calls of `outer`.
    """
    call = lower.nested_call(inner, {})
    last = len(call.outputs) + len(outer.calls) - 1
    return outer._replace(calls=(call, *outer.calls), operands=operands, outputs=(last,))


def test_a_flat_graph_stays_as_it_is():
    graph = graph_of(lambda x, y: (x + y).exp(), 2)
    flat = Flat(graph)
    assert [tuple(operator) for operator in flat.operators] == [
        ((0,), graph.calls[0], [-1, -2], range(1)),
        ((1,), graph.calls[1], [0], range(1, 2)),
    ]
    assert (flat.outputs, flat.maker) == ([1], [0, 1])


def test_operators_of_a_nested_graph_stand_in_its_place():
    inner = graph_of(lambda x: x.exp().sin())
    graph = within(inner, graph_of(lambda x: x.cos()), (-1, 0))
    flat = Flat(graph)
    assert names(flat) == ["aten::exp", "aten::sin", "aten::cos"]
    assert [operator.path for operator in flat.operators] == [(0, 0), (0, 1), (1,)]
    assert [list(operator.operands) for operator in flat.operators] == [[-1], [0], [1]]
    assert flat.outputs == [2]


def test_leaves_of_a_nested_graph_are_what_it_is_called_with():
    inner = graph_of(lambda x, y: x - y, 2)
    outer = graph_of(lambda x, y: x * y, 2)
    flat = Flat(within(inner, outer, (-2, -1, 0, -1)))
    assert [list(operator.operands) for operator in flat.operators] == [[-2, -1], [0, -1]]


def test_a_nested_graph_that_occurs_twice_has_its_operators_twice():
    call = lower.nested_call(graph_of(lambda x: x.exp().sin()), {})
    graph = graph_of(lambda x: x.cos())._replace(calls=(call, call), operands=(-1, 0), outputs=(1,))
    flat = Flat(graph)
    assert names(flat) == ["aten::exp", "aten::sin"] * 2
    assert [operator.path for operator in flat.operators] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [list(operator.operands) for operator in flat.operators] == [[-1], [0], [1], [2]]


def test_results_that_a_nested_graph_keeps_to_itself_have_values():
    """Slots of the outer graph count only what the inner one returns, so the two numberings differ."""
    inner = graph_of(lambda x: x.exp().sin().cos())
    graph = within(inner, graph_of(lambda x: x.neg()), (-1, 0))
    assert graph.outputs == (1,)
    flat = Flat(graph)
    assert flat.outputs == [3]
    assert [list(operator.results) for operator in flat.operators] == [[0], [1], [2], [3]]


def test_a_nested_graph_may_return_what_it_was_given():
    inner = graph_of(lambda x: x.exp())
    inner = inner._replace(outputs=(-1, 0))
    flat = Flat(within(inner, graph_of(lambda x, y: x + y, 2), (-2, 0, 1)))
    exp, add = flat.operators
    assert (exp.operands, add.operands) == ([-2], [-2, 0])


def test_every_result_has_its_maker():
    flat = Flat(graph_of(lambda x: (*x.max(0), x.exp())))
    assert names(flat) == ["aten::max.dim", "aten::exp"]
    assert flat.maker == [0, 0, 1]
    for number_of, operator in enumerate(flat.operators):
        assert {flat.maker[value] for value in operator.results} == {number_of}


def test_values_are_made_before_they_are_read():
    inner = graph_of(lambda x: (x.exp() * 2).sum() + x)
    flat = Flat(within(inner, graph_of(lambda x: x.sin().cos()), (-1, 0, 1)))
    for operator in flat.operators:
        assert all(value < operator.results.start for value in operator.operands)
