"""FX graphs become programs: what is read, what comes back, and whom it shares memory with."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from lazy_runtime.tensor.xla_tensor import unwrap
from openxla_backend.graph import fx
from openxla_backend.graph.outputs import Result
from tests.openxla_backend.programs import program, traced

aten = torch.ops.aten
X, Y = torch.ones(2, 3), torch.ones(2, 3)


def one_call(target, *others, line=None):
    """A graph that applies one operator to its argument and some constants, as a line of a user's."""
    graph = torch.fx.Graph()
    result = graph.call_function(target, (graph.placeholder("x"), *others))
    if line is not None:
        result.meta["stack_trace"] = line
    graph.output((result,))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def names(found):
    return [call.name for call in found.graph.calls]


# ---- what a program reads and computes


def test_leaves_are_the_arguments_that_are_read():
    found = program(lambda x, y, z: (z - y).exp(), X, Y, X)
    assert names(found) == ["aten::sub.Tensor", "aten::exp"]
    assert found.leaves == (2, 1)
    assert found.graph.operands == (-1, -2, 0)


def test_only_the_look_of_an_argument_matters():
    gm = make_fx(lambda x, y: (x * y).sum(), tracing_mode="fake")(X, Y)
    assert traced(gm, X, Y).graph == traced(gm, torch.randn(2, 3), torch.zeros(2, 3)).graph
    assert traced(gm, X, Y).graph != traced(gm, X.double(), Y.double()).graph


def test_an_argument_has_the_strides_that_the_graph_was_made_for():
    gm = make_fx(lambda x: x.exp(), tracing_mode="fake")(X)
    found = traced(gm, torch.ones(3, 2).t())
    assert [spec.stride for spec in found.graph.leaves] == [(3, 1)]


def test_an_argument_has_no_storage_offset():
    found = program(lambda x: x.exp(), torch.ones(4, 3)[2:])
    assert [spec.offset for spec in found.graph.leaves] == [0]


def test_what_is_not_returned_is_not_computed():
    def function(x):
        x.sin()
        return x.cos()

    assert names(program(function, X)) == ["aten::cos"]


def test_a_tensor_of_the_module_is_a_constant():
    constant = torch.arange(3.0)
    found = program(lambda x: x + constant, X, mode="real")
    argument, kept = found.leaves
    assert argument == 0
    assert torch.equal(torch.from_numpy(kept.handle.value.array.__array__().copy()), constant)


def test_random_operators_draw_seeds():
    assert program(lambda x: torch.rand_like(x) + torch.rand_like(x), X).seeds == 2
    assert program(lambda x: x + x, X).seeds == 0


def test_a_number_that_became_an_input_is_converted():
    assert names(traced(one_call(torch.ops.prims.convert_element_type.default, torch.float64), X)) == ["aten::_to_copy"]


# ---- writes


def test_a_write_to_an_argument_is_a_mutation():
    def function(x, y):
        x.copy_(y * 2)
        return (x + 1,)

    found = program(function, X, Y)
    assert names(found) == ["aten::mul.Tensor", "aten::add.Tensor"]
    assert found.leaves == (1,)
    ((number, written),) = found.mutations
    assert (number, written.source) == (0, Result(0))
    assert found.saved(0) == {1}


def test_data_that_is_exchanged_is_no_write():
    def function(x, y):
        aten.set_.source_Tensor(x, y * 2)
        return ()

    found = program(function, X, Y)
    ((number, becomes),) = found.exchanges
    assert (number, becomes.source) == (0, Result(0))
    assert found.mutations == ()


# ---- memory with dimension 1 last


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.ones(2, 3, 4, 5).contiguous(memory_format=torch.channels_last), True),
        (torch.ones(2, 3, 4, 5), False),
        (torch.ones(2, 1, 4, 5).contiguous(memory_format=torch.channels_last), False),  # in both orders at once
        (torch.ones(2, 3, 4).transpose(1, 2), False),
    ],
)
def test_strides_of_a_plain_tensor_say_the_order_of_its_memory(tensor, expected):
    assert fx.in_channels_last(tensor) is expected


def test_the_buffer_of_an_xla_tensor_says_the_order_of_its_memory():
    x = torch.ones(2, 3, 4, 5).contiguous(memory_format=torch.channels_last).to("xla")
    value = unwrap(x).handle.value
    for order in (False, True):
        value.channels_last = order
        assert fx.in_channels_last(x) is order


def test_a_placeholder_may_say_the_order_of_its_buffer():
    gm = make_fx(lambda x, y: x + y, tracing_mode="fake")(*(torch.ones(2, 3, 4, 5) for _ in range(2)))
    gm.graph.find_nodes(op="placeholder")[1].meta[fx.CHANNELS_LAST] = True
    found = traced(gm, torch.ones(2, 3, 4, 5), torch.ones(2, 3, 4, 5))
    assert found.graph.channels_last == (1,)


# ---- errors

LINE = 'File "train.py", line 3, in step\n    y = f(x)'


def test_what_may_fail_keeps_the_users_line():
    def function(x, i):
        return x.exp()[i]

    gm = make_fx(function, tracing_mode="fake")(X, torch.tensor([1]))
    for node in gm.graph.find_nodes(op="call_function", target=aten.index.Tensor):
        node.meta["stack_trace"] = LINE
    found = traced(gm, X, torch.tensor([1]))
    line = 'File "train.py", line 3, in step: y = f(x)'
    assert found.lines == {1: line}
    assert found.recorded == ("", line)
    assert found.known_lines() == {1: line}


def test_calls_that_should_not_fail_have_their_line_too():
    found = traced(one_call(aten.exp.default, line=LINE), X)
    assert found.lines == {}
    assert found.known_lines() == {0: 'File "train.py", line 3, in step: y = f(x)'}


@pytest.mark.parametrize(
    ("target", "others", "message"),
    [
        (aten._local_scalar_dense.default, (), "a number read from a tensor inside of one graph"),
        (torch.ops.higher_order.run_const_graph, (), "the higher-order operator run_const_graph is not supported"),
        (aten.quantize_per_tensor.default, (0.1, 0, torch.qint8), "aten::quantize_per_tensor"),
    ],
)
def test_what_cannot_be_traced_is_said_with_the_users_line(target, others, message):
    with pytest.raises(NotImplementedError, match=rf'(?s){message}.*\n  at File "train\.py", line 3, in step: y = f'):
        traced(one_call(target, *others, line=LINE), X)


def test_graphs_that_aotautograd_does_not_make_are_refused():
    graph = torch.fx.Graph()
    graph.output((graph.call_method("exp", (graph.placeholder("x"),)),))
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    with pytest.raises(NotImplementedError, match="FX nodes of kind call_method do not occur"):
        traced(gm, X)
