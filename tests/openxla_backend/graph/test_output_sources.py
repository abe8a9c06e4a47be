"""Where outputs come from, whom they share memory with, and what a call makes of that."""

from __future__ import annotations

import dataclasses

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from openxla_backend.graph.outputs import (
    Argument,
    ArgumentItself,
    Constant,
    OwnTensor,
    PythonValue,
    Result,
    View,
    result_of,
)
from tests.openxla_backend.programs import program, traced

aten = torch.ops.aten
X = torch.ones(2, 3)


def test_an_output_is_a_result_with_its_look():
    (output,) = program(lambda x: (x.t() + 1,), X).outputs
    assert isinstance(output, OwnTensor)
    assert output.source == Result(0)
    assert (output.spec.shape, output.spec.stride) == ((3, 2), (1, 3))
    assert output.device == torch.device("cpu")


def test_an_output_may_be_an_argument_or_have_its_value():
    same, detached, copied = program(lambda x: (x, x.detach(), x.clone()), X).outputs
    assert isinstance(same, ArgumentItself)
    assert isinstance(detached, OwnTensor)
    assert isinstance(copied, OwnTensor)
    assert [output.source for output in (same, detached, copied)] == [Argument(0), Argument(0), Result(0)]


def test_python_values_come_back_as_they_are():
    size, nothing, tensor = program(lambda x: (x.shape[0], None, x + 1), X, mode="symbolic").outputs
    assert (size, nothing) == (PythonValue(2), PythonValue(None))
    assert [result_of(output) for output in (size, nothing, tensor)] == [None, None, 0]


def test_a_constant_that_is_returned_twice_shares_memory_with_itself_alone():
    graph = torch.fx.Graph()
    graph.placeholder("x")
    graph.output((graph.get_attr("first"),) * 2 + (graph.get_attr("second"),))
    constants = torch.nn.Module()
    constants.first, constants.second = torch.arange(3.0), torch.arange(3.0)
    first, again, second = traced(torch.fx.GraphModule(constants, graph), X).outputs
    assert all(isinstance(output.source, Constant) and output.copied for output in (first, again, second))
    assert again.memory == first.memory != second.memory


def test_what_a_user_does_not_see_is_contiguous_and_saved():
    found = program(lambda x: ((x + 1).t(), (x * 2).t()), X, visible=1)
    assert [output.spec.stride for output in found.outputs] == [(1, 3), (2, 1)]
    assert found.saved(1) == {result_of(found.outputs[1])}


def test_a_result_that_is_seen_as_well_is_not_saved():
    def function(x):
        y = x.exp()
        return y, y

    assert program(function, X, visible=1).saved(1) == set()


def test_two_views_of_one_result_have_one_base():
    def function(x):
        y = x + 1
        return y.t(), y[1]

    transposed, row = program(function, X).outputs
    assert transposed.base == row.base
    assert transposed.base.spec.shape == (2, 3)
    base = torch.arange(6.0).reshape(2, 3)
    for output, expected in ((transposed, base.t()), (row, base[1])):
        seen = output.of(base)
        assert torch.equal(seen, expected)
        assert seen.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()


def test_one_view_alone_has_no_base():
    (output,) = program(lambda x: ((x + 1).t(),), X).outputs
    assert isinstance(output, OwnTensor)


def test_a_view_of_an_argument_is_one_where_it_is_asked_for():
    gm = make_fx(lambda x: (x[1],), tracing_mode="fake")(X)
    assert isinstance(traced(gm, X).outputs[0], OwnTensor)
    (output,) = traced(gm, X, aliases=frozenset({0})).outputs
    assert isinstance(output, View)
    assert isinstance(output.base, ArgumentItself)
    assert output.base.source == Argument(0)


def test_a_view_is_found_in_memory_that_begins_earlier():
    argument = torch.arange(12.0).reshape(4, 3)[2:]
    (output,) = program(lambda x: (x[1],), argument, aliases=frozenset({0})).outputs
    assert output.of(argument).tolist() == [9, 10, 11]


def test_a_view_of_another_dtype_is_made_by_its_operators():
    def function(x):
        return (x.view(torch.int32).t(),)

    (output,) = program(function, X, aliases=frozenset({0})).outputs
    assert aten.view.dtype in [call.target for call in output.calls]
    assert torch.equal(output.of(X), function(X)[0])


def test_a_detached_view_has_one_base_for_all_that_autograd_does_not_know():
    (output,) = program(lambda x: (x.detach()[0],), X, aliases=frozenset({0})).outputs
    assert output.detached
    base = torch.ones(2, 3, requires_grad=True)
    made = {}
    seen = output.seen_base(base, made)
    assert not seen.requires_grad
    assert output.seen_base(base, made) is seen
    assert dataclasses.replace(output, detached=False).seen_base(base, made) is base


def test_a_second_output_of_one_result_has_memory_of_its_own():
    def function(x):
        y = x.exp()
        return y, aten.alias_copy.default(y)

    first, second = program(function, X).outputs
    assert isinstance(first, OwnTensor)
    assert isinstance(second, OwnTensor)
    assert first.source == second.source == Result(0)
    assert first.memory is not None
    assert second.memory is None
