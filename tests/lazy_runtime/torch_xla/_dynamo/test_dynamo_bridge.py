import pytest
import torch

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.torch_xla._dynamo import dynamo_bridge as bridge


def traced(module):
    return torch.fx.symbolic_trace(module)


class Several(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, a, b):
        a.sub_(b)
        y = self.linear(a)
        return y, b, y, y.relu()


def test_a_graph_runs_as_a_program():
    model = Several()
    program = bridge.extract_compiled_graph(
        traced(model).to("xla"), [torch.ones(2, 4, device="xla")] * 1 + [torch.ones(2, 4, device="xla")]
    )
    compiled = metrics.value("UncachedCompile")
    for seed in range(3):
        torch.manual_seed(seed)
        a, b = torch.randn(2, 4), torch.randn(2, 4)
        x, y = a.to("xla"), b.to("xla")
        lazy_runtime.sync()
        found = program(x, y)
        expected = model.cpu()(a, b)
        torch.testing.assert_close([each.cpu() for each in found], [each.detach() for each in expected])
        torch.testing.assert_close(x.cpu(), a)  # which the graph has written to
        assert found[0] is found[2]
        assert found[1] is y
        model.to("xla")
    assert metrics.value("UncachedCompile") - compiled <= 1  # the copies into what is written


def test_other_kinds_of_arguments_are_other_programs():
    def scaled(x, n):
        return x * n

    program = bridge.extract_compiled_graph(traced(_Function(scaled)), [torch.ones(3, device="xla"), 2])
    assert program(torch.ones(3, device="xla"), 2).tolist() == [2] * 3
    assert program(torch.ones(3, device="xla"), 5).tolist() == [5] * 3
    assert program(torch.ones(2, device="xla"), 5).tolist() == [5] * 2


class _Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, n):
        return self.function(x, n)


class Counts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x):
        self.total.add_(x)
        return x * self.total


def test_buffers_are_updated_by_each_call():
    model = Counts().to("xla")
    program = bridge.extract_compiled_graph(traced(model), [torch.ones(3, device="xla")])
    assert model.total.tolist() == [0] * 3
    assert program(torch.full((3,), 2.0, device="xla")).tolist() == [4] * 3
    assert program(torch.full((3,), 3.0, device="xla")).tolist() == [15] * 3
    assert model.total.tolist() == [5] * 3


class Reads(torch.nn.Module):
    def forward(self, x):
        return x.cpu() + 1


def test_a_graph_that_leaves_the_device_is_called_as_it_is():
    program = bridge.extract_compiled_graph(traced(Reads()), [torch.ones(2, device="xla")])
    for number in (1.0, 2.0):
        assert program(torch.full((2,), number, device="xla")).tolist() == [number + 1] * 2


def test_all_arguments_are_on_xla():
    with pytest.raises(ValueError, match="move all tensor arguments"):
        bridge.extract_compiled_graph(traced(torch.nn.ReLU()), [torch.ones(1)])


def test_inputs_of_a_program():
    x, w = torch.ones(1), torch.zeros(1)
    matcher = bridge.GraphInputMatcher({7: 1}, [5, 7], [w, x], {7})
    assert matcher.graph_input_xla_values == [w, None]
    other = torch.full((1,), 3.0)
    assert matcher([None, other]) == [w, other]


def test_duplicates():
    x, y = torch.ones(1).to("xla"), torch.ones(1).to("xla")
    deduper = bridge.Deduper()
    kept = deduper.dedup([x, y, x.detach(), 3, 3])
    assert len(kept) == 3
    assert deduper.recover(["a", "b", "c"]) == ["a", "b", "a", "c", "c"]


@pytest.mark.parametrize("values", [[None, 1, None, None, 2], [], [None], [1]])
def test_nothing_among_the_results(values):
    remover = bridge.NoneRemover()
    given = list(values)
    assert remover.remove_nones(given) is given
    assert None not in given
    assert remover.add_nones(given) == values
    assert remover.add_nones(remover.remove_nones(tuple(values))) == tuple(values)
    with pytest.raises(TypeError, match="a list or a tuple, got set"):
        remover.remove_nones({1})


def test_results_that_no_program_gives():
    x, y = torch.ones(1).to("xla"), torch.zeros(1).to("xla")
    z = x + y
    handler = bridge.SpecialReturnHandler([x, y], [z, x, z], [False, False], [(1, 5)])
    assert handler.addDumbReturn(["x", "y"], ["z"]) == ["z", 5, "x", "z"]


def test_nodes_on_the_cpu_are_collected():
    class Mixed(torch.nn.Module):
        def forward(self, x):
            y = x + 1
            return y.cpu()

    collector = bridge.UnsupportedNodesCollector(traced(Mixed()))
    before = metrics.value("UncachedCompile")
    collector.run(torch.ones(2, device="xla"))
    assert [node.name for node in collector.get_unsupported_nodes()] == ["cpu", "output"]
    assert metrics.value("UncachedCompile") >= before
    assert bridge.is_xla_tensor(torch.ones(1, device="xla"))
    assert not bridge.is_xla_tensor(torch.ones(1))
    assert isinstance(bridge.get_fallback_ops(), list)


def test_arguments_of_submodules_are_collected():
    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fused_0 = torch.nn.ReLU()

        def forward(self, x):
            return self.fused_0(x + 1)

    graph = traced(Outer())
    bridge.InputCollector(graph).run(torch.ones(2))
    assert graph.fused_0.xla_args[0].tolist() == [2, 2]


def test_tensors_are_made_where_they_are_used():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    cpu, xla = torch.device("cpu"), torch.device("xla")
    made = [graph.call_function(torch.ops.aten.arange.default, (3,), {"device": cpu}) for _ in range(3)]
    copies = [
        graph.call_function(torch.ops.aten._to_copy.default, (made[0],), {"device": xla}),
        graph.call_method("to", (made[1], "xla")),
        graph.call_method("to", (made[2], "xla")),
    ]
    graph.output((*copies, made[2], x))
    mover = bridge.XLAConstructorMoverPass()
    assert [mover.allow_cpu_device(each) for each in (*copies, x)] == [True, True, True, False]
    mover(graph)
    assert [each.kwargs["device"] for each in made] == [xla, xla, cpu]  # the last is a result as it is


def test_the_counter():
    before = metrics.value("DynamoExtractCompiledGraph")
    model = traced(torch.nn.ReLU())
    bridge.extract_compiled_graph(model, [torch.ones(1, device="xla")])
    assert metrics.value("DynamoExtractCompiledGraph") == before + 1
    model.xla_args = (torch.full((2,), -1.0, device="xla"),)
    assert bridge.extract_internal(model)(*model.xla_args).tolist() == [0, 0]
    with bridge.alias_with_buffer_donor_config():
        pass
