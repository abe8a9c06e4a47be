"""From nodes to a graph: dead code, leaves, equal programs, donation."""

from __future__ import annotations

import pytest
import torch

from lazy_runtime.compilation import linearization, lower
from lazy_runtime.recording import dispatch
from lazy_runtime.tensor.xla_tensor import from_array
from tests.lazy_runtime.graphs import buffers, number, record


def names(graph):
    return [call.name for call in graph.calls]


def test_dead_code_is_dropped():
    def function(x):
        x.exp().sin()  # nobody keeps it
        return x.cos() + 1

    (x,) = buffers(torch.ones(3))
    numbered, _kept = number(function, x)
    assert names(numbered.graph) == ["aten::cos", "aten::add.Tensor"]
    assert numbered.graph.operands == (-1, 0)
    assert numbered.graph.outputs == (1,)
    assert len(numbered.nodes) == 2


def test_nothing_is_left_of_a_program_that_nobody_reads():
    (x,) = buffers(torch.ones(3))
    numbered, kept = number(lambda x: [x.exp().sin()][:0], x)
    assert kept == []
    assert (numbered.graph.calls, numbered.graph.leaves, numbered.live, numbered.nodes) == ((), (), [], [])


def test_outputs_are_what_is_kept_in_the_order_of_recording():
    (x,) = buffers(torch.ones(2, 3))
    numbered, (total, places, doubled) = number(lambda x: (*x.max(1), x * 2), x)
    assert names(numbered.graph) == ["aten::max.dim", "aten::mul.Tensor"]
    assert numbered.graph.outputs == (0, 1, 2)
    assert numbered.live == [total.handle, places.handle, doubled.handle]
    numbered, _places = number(lambda x: x.max(1)[1], x)
    assert numbered.graph.outputs == (1,)


def test_a_leaf_is_one_however_often_it_is_used():
    x, y = buffers(torch.ones(3), torch.ones(3))
    numbered, _kept = number(lambda x, y: x * x + y * x, x, y)
    assert numbered.graph.operands == (-1, -1, -2, -1, 0, 1)
    assert numbered.leaves == [x.handle.value, y.handle.value]


def test_two_leaves_with_one_buffer_stay_two():
    (x,) = buffers(torch.ones(3))
    twin = from_array(x.handle.value.array, x.spec)
    numbered, _kept = number(lambda x, y: x + y, x, twin)
    assert numbered.graph.operands == (-1, -2)
    assert len(numbered.graph.leaves) == 2


def test_equal_programs_give_equal_graphs():
    def function(x, y):
        return torch.relu(x @ y) * 2

    x, y = buffers(torch.ones(2, 3), torch.ones(3, 4))
    u, v = buffers(torch.zeros(2, 3), torch.zeros(3, 4))
    (first, _a), (second, _b) = number(function, x, y), number(function, u, v)
    assert first.graph == second.graph
    assert hash(first.graph) == hash(second.graph)
    others = [
        number(lambda x, y: torch.relu(x @ y) * 3, x, y),
        number(lambda x, y: torch.relu(x @ y) * 2.0, x, y),
        number(lambda x, y: torch.sin(x @ y) * 2, x, y),
        number(function, x, *buffers(torch.ones(3, 5))),
        number(function, *buffers(torch.ones(2, 3, dtype=torch.float64), torch.ones(3, 4, dtype=torch.float64))),
    ]
    assert len({first.graph, *(other.graph for other, _kept in others)}) == 6


def test_a_graph_in_words():
    x, y = buffers(torch.ones(2, 3), torch.ones(3, 4))
    numbered, _kept = number(lambda x, y: torch.relu(x @ y), x, y)
    assert str(numbered.graph).splitlines() == [
        "%-1: float32[2,3] on xla:0",
        "%-2: float32[3,4] on xla:0",
        "%0 = aten::mm(%-1, %-2) : float32[2,4] on xla:0",
        "%1 = aten::relu(%0) : float32[2,4] on xla:0",
        "return %1",
    ]


@pytest.mark.parametrize(
    ("function", "dead", "expected"),
    [
        (lambda x, y: x + y, (), ()),
        (lambda x, y: x + y, (0,), (0,)),
        (lambda x, y: x + y, (1,), (1,)),
        (lambda x, y: x + y, (0, 1), (0,)),  # one output takes one buffer
        (lambda x, y: (x + y, x - y), (0, 1), (0, 1)),
        (lambda x, y: (x + y).sum(), (0, 1), ()),  # no output of their size
        (lambda x, y: x > y, (0, 1), ()),  # nor of their dtype
    ],
)
def test_buffers_that_nobody_holds_are_donated_to_outputs_of_their_kind(function, dead, expected):
    pair = buffers(torch.ones(3), torch.ones(3))
    holders = [x for i, x in enumerate(pair) if i not in dead]
    device = pair[0].spec.device
    nodes, kept = record(function, *pair)
    del pair
    assert linearization.linearize(device, nodes, donate=True).graph.donated == expected
    assert linearization.linearize(device, nodes, donate=False).graph.donated == ()
    del holders, kept


@pytest.mark.parametrize("attribute", ["pinned", "channels_last"])
def test_buffers_that_must_stay_as_they_are_are_not_donated(attribute):
    (x,) = buffers(torch.ones(3, 3))
    setattr(x.handle.value, attribute, True)
    device = x.spec.device
    nodes, _kept = record(lambda x: x + 1, x)
    del x
    assert linearization.linearize(device, nodes, donate=True).graph.donated == ()


def test_channels_last_buffers_are_named():
    x, y = buffers(torch.ones(3, 3), torch.ones(3, 3))
    y.handle.value.channels_last = True
    numbered, _kept = number(lambda x, y: x + y, x, y)
    assert numbered.graph.channels_last == (1,)


def test_nodes_of_a_failed_program_are_part_of_those_that_need_them():
    (x,) = buffers(torch.ones(3))
    device = x.spec.device
    nodes, _kept = record(lambda x: (x.exp().sin() + 1, x.cos()), x)
    for pending in (nodes[2:3], [nodes[2], nodes[3]]):
        numbered = linearization.linearize(device, pending, donate=False)
        assert names(numbered.graph)[:3] == ["aten::exp", "aten::sin", "aten::add.Tensor"]
        assert numbered.graph.outputs == tuple(range(2, 2 + len(pending)))


def test_what_others_read_is_an_output_and_not_donated():
    (x,) = buffers(torch.ones(3))
    device = x.spec.device
    value = x.handle.value
    nodes, _kept = record(lambda x: ((x.exp() + 1) * 2, x.exp() * 3), x)
    del x
    numbered = linearization.linearize(device, nodes[:2], donate=True, others=nodes[2:])
    assert names(numbered.graph) == ["aten::exp", "aten::add.Tensor"]
    assert [handle.value for handle in numbered.live] == [nodes[2].inputs[0]]
    assert numbered.graph.donated == ()
    assert numbered.leaves == [value]


def test_what_others_read_may_need_a_node_of_a_failed_program():
    (x,) = buffers(torch.ones(3))
    device = x.spec.device
    # of the sum and its square nobody holds a handle, so the sum is needed only once the other's reader is seen
    nodes, _kept = record(lambda x: ((x.exp() + 1).square(), x.cos())[1:], x)
    _failed, of_it, reader, mine = nodes
    numbered = linearization.linearize(device, [of_it, mine], donate=False, others=[reader])
    assert names(numbered.graph) == ["aten::exp", "aten::add.Tensor", "aten::cos"]
    assert numbered.live[0].value is reader.inputs[0]


def test_a_graph_that_is_alone_is_numbered_once_for_what_it_depends_on():
    """As a training step is: until somebody holds a value that was to be donated, or lets go of a result."""
    nested, _kept = number(lambda x, y: (x + y, x * 2), *buffers(torch.ones(3), torch.ones(3)))
    call = lower.nested_call(nested.graph, {})

    def of(*values, kept=2):
        handles = dispatch.record_graph(call, values, ())[:kept]
        pending = call.device.pending[:]
        call.device.pending.clear()
        return linearization.linearize(call.device, pending, donate=True), handles

    def values(count=2):
        return [x.handle.value for x in buffers(*(torch.ones(3) for _ in range(count)))]

    first, _handles = of(*values())
    assert first.graph.donated == (0, 1)
    again, handles = of(*values())
    assert again.graph is first.graph
    assert again.live == handles
    held = buffers(torch.ones(3))
    other, _handles = of(held[0].handle.value, *values(1))
    assert other.graph.donated == (1,)
    one, _handles = of(*values(), kept=1)
    assert (one.graph.outputs, one.graph.donated) == ((0,), (0,))
    (same,) = values(1)
    assert of(same, same)[0].graph.operands == (-1, -1)
    assert of(*values())[0].graph is first.graph
