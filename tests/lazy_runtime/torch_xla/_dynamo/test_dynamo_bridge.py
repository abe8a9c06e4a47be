import importlib.util

import pytest
import torch

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.ops import registry
from lazy_runtime.recording import decompose, dispatch, fallback
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
    add, cpu, _ = list(collector.module.graph.nodes)[1:]
    collector.env = {add.args[0]: torch.full((2,), 3.0, device="xla")}
    collector.env[add] = collector.run_node(add)
    assert collector.env[add].tolist() == [4, 4]
    assert collector.run_node(cpu).device.type == "cpu"
    assert collector.get_unsupported_nodes()[2:] == [cpu]
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
    given = (torch.full((2,), -3.0),)
    assert bridge.InputCollector(graph).call_module("fused_0", given, {}).tolist() == [0, 0]
    assert graph.fused_0.xla_args is given


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


def test_what_is_recorded_is_found_by_the_kind_of_the_arguments(monkeypatch, capsys):
    model = traced(torch.nn.Tanh())
    model.xla_args = (torch.ones(3, device="xla"),)
    monkeypatch.setattr(bridge, "dynamo_debug", True)
    known: dict = {}
    program = bridge.extract_graph_helper(model, known)
    assert "dynamo_bridge records:" in (printed := capsys.readouterr().out)
    assert model.code in printed
    monkeypatch.setattr(bridge, "dynamo_debug", False)
    model.xla_args = (torch.ones(2, device="xla"),)
    bridge.extract_graph_helper(model, known)
    assert not capsys.readouterr().out
    assert len(known) == 2
    assert program in known.values()
    x = torch.full((3,), 0.5).to("xla")
    compiled = metrics.value("UncachedCompile")
    torch.testing.assert_close(program([x]).cpu(), torch.full((3,), 0.5).tanh())
    assert metrics.value("UncachedCompile") == compiled


@pytest.mark.parametrize("is_partitioned", [True, False])
def test_helpers_make_a_program_without_counting_it(is_partitioned):
    graph = torch.fx.Graph()
    given = graph.placeholder("x")
    made = graph.call_function(torch.ops.aten.arange.default, (2,), {"device": torch.device("cpu")})
    graph.output(
        graph.call_method("add", (graph.call_method("sinh", (given,)), graph.call_method("to", (made, "xla"))))
    )
    model, x = torch.fx.GraphModule({}, graph), torch.ones(2, device="xla")
    lazy_runtime.sync()
    before = metrics.value("DynamoExtractCompiledGraph")
    if is_partitioned:
        program = bridge.partition_fx_graph_for_cpu_fallback(model, [x], [x], [x])
    else:
        program = bridge.extract_compiled_graph_helper(model, [x])
    assert metrics.value("DynamoExtractCompiledGraph") == before
    assert made.kwargs["device"].type == ("cpu" if is_partitioned else "xla")  # the whole way moves what is made
    y = torch.tensor([0.0, 2.0]).to("xla")
    executed = metrics.value("ExecuteComputation")
    torch.testing.assert_close(program(y).cpu(), torch.tensor([0.0, 2.0]).sinh() + torch.arange(2))
    assert metrics.value("ExecuteComputation") == executed + 1


@pytest.mark.parametrize(("name", "variable"), [("dynamo_debug", "XLA_DYNAMO_DEBUG"), ("ptxla_debug", "PT_XLA_DEBUG")])
def test_variables_that_ask_for_diagnoses(monkeypatch, name, variable):
    found = []
    for value in ("0", "1"):
        monkeypatch.setenv(variable, value)
        module = importlib.util.module_from_spec(bridge.__spec__)
        bridge.__spec__.loader.exec_module(module)
        found.append(getattr(module, name))
    assert found == [False, True]


def test_operators_without_a_lowering_are_printed(monkeypatch, capsys):
    overload = torch.ops.aten.erf.default
    monkeypatch.delitem(registry.table, overload)
    monkeypatch.delitem(decompose.decomposition_table, overload, raising=False)
    monkeypatch.setitem(dispatch._handlers, overload, fallback.call)

    class Erf(torch.nn.Module):
        def forward(self, x):
            return torch.erf(x) + 1

    x = torch.tensor([0.25, 0.5])
    for is_printed in (False, True):
        monkeypatch.setattr(bridge, "ptxla_debug", is_printed)
        program = bridge.extract_compiled_graph(traced(Erf()), [torch.ones(2, device="xla")])
        expected = "dynamo_bridge: torch's kernels are called for aten::erf\n" if is_printed else ""
        assert capsys.readouterr().out == expected
        torch.testing.assert_close(program(x.to("xla")).cpu(), torch.erf(x) + 1)
    collector = bridge.UnsupportedNodesCollector(traced(Erf()))
    collector.run(x.to("xla"))
    assert [node.name for node in collector.get_unsupported_nodes()] == ["erf"]
