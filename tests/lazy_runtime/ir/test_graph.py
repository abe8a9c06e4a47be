"""Calls, values and graphs: what keeps a result alive, and what makes two programs one."""

from __future__ import annotations

import torch

import lazy_runtime
from lazy_runtime.compilation import linearization, lower
from lazy_runtime.ir.graph import Call, Graph, Handle, Value
from lazy_runtime.ir.spec import TensorSpec
from lazy_runtime.platform import xla_devices
from tests.lazy_runtime.graphs import buffers, number, record


def spec(*shape):
    return TensorSpec.of(xla_devices.get(torch.device("xla:0")), torch.float32, shape)


def made(name, inputs, outputs, **options):
    """A call that nobody evaluates."""
    return Call(
        name, xla_devices.get(torch.device("xla:0")), lambda arrays, floats, ints: arrays, inputs, outputs, **options
    )


def pending():
    """The graph of what the device has not executed yet, where numbers are inputs."""
    device = xla_devices.get(torch.device("xla:0"))
    return linearization.linearize(device, device.pending[:], donate=False).graph


def nested(function, *tensors):
    """The function's graph as one call, and that graph."""
    graph = number(function, *tensors)[0].graph
    return lower.nested_call(graph, {}), graph


# ---- calls


def test_the_same_operator_on_the_same_specs_is_one_call():
    x, y = buffers(torch.ones(3), torch.zeros(3))
    nodes, _kept = record(lambda x, y: (x.exp(), y.exp(), x.exp(), x.sin()), x, y)
    first, second, third, other = (node.call for node in nodes)
    assert first is second is third
    assert other is not first


def test_another_static_argument_is_another_call():
    (x,) = buffers(torch.ones(2, 3))
    nodes, _kept = record(lambda x: (x.sum(0), x.sum(1), x.sum(0)), x)
    rows, columns, again = (node.call for node in nodes)
    assert rows is again
    assert rows is not columns
    assert rows.meaning is not None


def test_a_call_in_words():
    call = made("aten::sum", (spec(2, 3),), (spec(),))
    assert repr(call) == "aten::sum(float32[2,3] on xla:0) -> float32[] on xla:0"


def test_calls_that_fail_or_wait_for_others_are_located():
    inputs, outputs = (spec(3),), (spec(3),)
    assert not made("aten::exp", inputs, outputs).located
    assert made("aten::take", inputs, outputs, fallible=True).located
    assert made("lazy_runtime::all_reduce", inputs, outputs, collective=True).located


def test_operators_of_users_are_not_ours():
    names = ["aten::exp", "lazy_runtime::shard", "openxla::graph", "aten_like::exp", "mylib::exp"]
    assert [made(name, (), ()).is_ours for name in names] == [True, True, False, False, False]


def test_a_call_that_is_a_graph_stands_for_its_operators():
    (x,) = buffers(torch.ones(3))
    call, graph = nested(lambda x: x.exp().sin() + 1, x)
    assert call.operators == len(graph.calls) == 3
    assert graph.calls[0].operators == 1


# ---- values and handles


def test_a_value_knows_its_handle_as_long_as_that_lives():
    value = Value(None, 0)
    assert value.owner is None
    handle = Handle(value)
    assert value.owner() is handle
    del handle
    assert value.owner() is None


def test_a_node_keeps_its_inputs_and_not_its_results():
    (x,) = buffers(torch.ones(3))
    value = x.handle.value
    (node,), kept = record(lambda x: x.exp(), x)
    owner = node.outputs[0]
    assert owner() is kept.handle
    del x, kept
    assert owner() is None
    assert node.inputs[0] is value
    assert value.owner() is None


def test_results_of_one_node_are_numbered():
    (x,) = buffers(torch.ones(2, 3))
    (node,), (largest, places) = record(lambda x: x.max(1), x)
    for position, result in enumerate((largest, places)):
        assert result.handle.value.node is node
        assert result.handle.value.index == position
        assert result.handle.value.array is None


# ---- graphs


def test_a_graph_is_a_key_by_all_of_its_parts():
    x, y = buffers(torch.ones(3), torch.ones(3))
    graph = number(lambda x, y: x + y, x, y)[0].graph
    known = {graph: "a program"}
    assert known[Graph(*graph)] == "a program"
    changes = {"operands": (-2, -1), "donated": (0,), "channels_last": (1,), "options": (("an option", 1),)}
    assert not [name for name, changed in changes.items() if graph._replace(**{name: changed}) in known]


def test_equal_looks_of_another_call_are_another_graph():
    (x,) = buffers(torch.ones(3))
    graph = number(lambda x: x.exp(), x)[0].graph
    (call,) = graph.calls
    twin = made(call.name, call.inputs, call.outputs)
    assert repr(twin) == repr(call)
    assert graph._replace(calls=(twin,)) != graph


def test_numbers_of_a_graph_are_those_of_its_calls():
    x = torch.ones(3, device="xla")
    lazy_runtime.sync()
    kept = x * 2.5 + 3.5, torch.rand_like(x)
    graph = pending()
    assert [(call.floats, call.ints, call.random) for call in graph.calls] == [
        (1, 0, False),
        (1, 0, False),
        (0, 1, True),
    ]
    assert (graph.floats, graph.ints) == (2, 1)
    del kept


def test_calls_that_share_numbers_need_fewer():
    x = torch.ones(3, device="xla")
    lazy_runtime.sync()
    kept = x * 2.5, x * 3.5, x * 2.5
    graph = pending()
    assert graph.floats == len(kept)
    assert graph._replace(shared=(0, 1, 0)).floats == 2


def test_one_collective_makes_a_graph_collective():
    (x,) = buffers(torch.ones(3))
    graph = number(lambda x: x.exp(), x)[0].graph
    assert not graph.is_collective
    call = made("lazy_runtime::all_reduce", (spec(3),), (spec(3),), collective=True)
    assert graph._replace(calls=(*graph.calls, call), operands=(-1, 0), outputs=(1,)).is_collective


def test_calls_within_calls_follow_the_call_that_they_are_in():
    (x,) = buffers(torch.ones(3))
    call, inner = nested(lambda x: x.exp().sin(), x)
    outer = number(lambda x: x.cos(), x)[0].graph
    graph = outer._replace(calls=(call, *outer.calls), operands=(-1, 0), outputs=(1,))
    assert list(graph.all_calls()) == [call, *inner.calls, *outer.calls]


def test_an_output_may_be_a_leaf():
    (x,) = buffers(torch.ones(2, 3))
    graph = number(lambda x: x.sum(), x)[0].graph._replace(outputs=(-1, 0))
    assert graph.output_specs() == [spec(2, 3), spec()]
    assert str(graph).splitlines()[-1] == "return %-1, %0"


def test_undefined_results_take_a_slot_and_have_no_spec():
    x, weight, gradient = buffers(torch.ones(1, 1, 4), torch.ones(1, 1, 2), torch.ones(1, 1, 3))

    def function(x, weight, gradient):
        backward = torch.ops.aten.convolution_backward
        results = backward(gradient, x, weight, [0], [1], [0], [1], False, [0], 1, [False, True, False])
        assert results[0] is results[2] is None
        return results[1]

    graph = number(function, x, weight, gradient)[0].graph
    (call,) = graph.calls
    assert call.outputs == (None, spec(1, 1, 2), None)
    assert graph.outputs == (1,)
    assert graph.output_specs() == [spec(1, 1, 2)]
    assert graph._replace(outputs=(0, 1, 2)).output_specs() == [spec(1, 1, 2)]


def test_several_results_in_words():
    (x,) = buffers(torch.ones(2, 3))
    graph = number(lambda x: x.max(1)[1] + 1, x)[0].graph
    assert str(graph).splitlines() == [
        "%-1: float32[2,3] on xla:0",
        "%0, %1 = aten::max.dim(%-1) : float32[2] on xla:0, int64[2] on xla:0",
        "%2 = aten::add.Tensor(%1) : int64[2] on xla:0",
        "return %2",
    ]
