"""`lazy_runtime.compile`."""

from __future__ import annotations

import pytest
import torch

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.compilation import compiler
from lazy_runtime.tensor.xla_tensor import unwrap
from lazy_runtime.torch_xla import experimental


def double(x):
    """Twice and one."""
    return x * 2 + 1


@pytest.mark.parametrize("eager", [False, True])
def test_a_call_is_one_program(eager):
    x = torch.ones(3, device="xla")
    lazy_runtime.sync()
    experimental.eager_mode(eager)
    compiled = lazy_runtime.compile(double)
    assert (compiled.__name__, compiled.__doc__) == ("double", "Twice and one.")
    metrics.clear()
    for _ in range(3):
        y = compiled(x)
    assert metrics.value("ExecuteComputation") == 3
    assert metrics.value("UncachedCompile") <= 1
    assert experimental.is_eager_mode() is eager
    assert y.tolist() == [3, 3, 3]
    assert metrics.value("ExecuteComputation") == 3


def test_decorator_with_arguments_and_context_manager():
    @lazy_runtime.compile(full_graph=True)
    def triple(x):
        return x * 3 + 1

    x = torch.ones(3, device="xla")
    lazy_runtime.sync()
    experimental.eager_mode(True)
    metrics.clear()
    assert triple(x).tolist() == [4, 4, 4]
    assert triple.__name__ == "triple"
    with lazy_runtime.compile():
        y = double(x)
        assert not experimental.is_eager_mode()
    assert experimental.is_eager_mode()
    assert metrics.value("ExecuteComputation") == 2
    assert y.tolist() == [3, 3, 3]


def test_a_training_step():
    layer = torch.nn.Linear(3, 2).to("xla")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    x = torch.ones(4, 3, device="xla")

    def step():
        optimizer.zero_grad()
        loss = layer(x).pow(2).sum()
        loss.backward()
        optimizer.step()
        return loss

    compiled = lazy_runtime.compile(step, full_graph=True)
    losses = [compiled().item() for _ in range(3)]
    assert losses == sorted(losses, reverse=True)
    metrics.clear()
    compiled()
    assert (metrics.value("ExecuteComputation"), metrics.value("UncachedCompile")) == (1, 0)


def test_nested_calls_are_one_program():
    x = torch.ones(3, device="xla")
    lazy_runtime.sync()
    inner = lazy_runtime.compile(double)
    outer = lazy_runtime.compile(lambda x: inner(x) + inner(x * 2))
    metrics.clear()
    assert outer(x).tolist() == [8, 8, 8]
    assert metrics.value("ExecuteComputation") == 1


def test_full_graph_names_the_line_that_reads():
    @lazy_runtime.compile(full_graph=True, name="my step")
    def step(x):
        y = x + 1
        if y.sum().item() > 0:  # the line
            y = y * 2
        return y

    x = torch.ones(3, device="xla")
    lazy_runtime.sync()
    message = r"my step is compiled with full_graph=True and a value is read at .*# the line"
    with pytest.raises(RuntimeError, match=message):
        step(x)
    assert x.tolist() == [1, 1, 1]


def test_full_graph_refuses_a_sync_and_allows_what_is_there():
    @lazy_runtime.compile(full_graph=True)
    def step(x, sync):
        assert x.tolist() == [1, 1, 1]  # was computed before
        if sync:
            lazy_runtime.sync()
        return x + 1

    x = torch.ones(3, device="xla")
    assert step(x, False).tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match=r"lazy_runtime.sync\(\) is called at"):
        step(x, True)


def test_without_full_graph_a_read_only_cuts():
    @lazy_runtime.compile
    def step(x):
        y = x + 1
        return y * 2 if y.sum().item() > 0 else y

    assert step(torch.ones(3, device="xla")).tolist() == [4, 4, 4]


def test_max_different_graphs():
    compiled = lazy_runtime.compile(double, max_different_graphs=2)
    for size in (3, 4, 3, 4):
        assert compiled(torch.ones(size, device="xla")).tolist() == [3] * size
    with pytest.raises(RuntimeError, match="double has given 3 different graphs and may give 2"):
        compiled(torch.ones(5, device="xla"))
    assert compiled(torch.ones(3, device="xla")).tolist() == [3, 3, 3]
    with pytest.raises(ValueError, match="at least 1"):
        lazy_runtime.compile(double, max_different_graphs=0)


def test_compile_options_are_the_programs_own():
    def options_of(run):
        compiler.clear()
        x = torch.ones(3, device="xla")
        assert run(x).tolist() == [3, 3, 3]
        return [graph.options for graph, *_ in compiler._executables if "add" in str(graph)]

    option = {"xla_cpu_enable_fast_min_max": True}
    assert options_of(lazy_runtime.compile(double, custom_compile_options=option)) == [tuple(option.items())]
    assert options_of(lazy_runtime.compile(double)) == [()]
    with pytest.raises(ValueError, match=r"XLA refuses 'xla_nothing': .*No such compile option"):
        lazy_runtime.compile(double, custom_compile_options={"xla_nothing": 1})(torch.ones(4, device="xla"))


def test_entering_a_region_executes_what_was_pending():
    x = torch.ones(3, device="xla")
    lazy_runtime.sync()
    prepared = x + 5
    metrics.clear()
    with lazy_runtime.step():
        assert metrics.value("ExecuteComputation") == 1
        y = prepared * 2
        assert metrics.value("ExecuteComputation") == 1
    assert metrics.value("ExecuteComputation") == 2
    assert y.tolist() == [12, 12, 12]


def test_a_call_in_eager_mode_does_not_wait_for_its_execution():
    """Also where the program may fail, as an embedding may whose indices are out of range."""
    experimental.eager_mode(True)
    table = torch.rand(900, 900, device="xla")
    index = torch.arange(900, device="xla")

    @lazy_runtime.compile(full_graph=True)
    def step(x):
        for _ in range(10):
            x = (torch.nn.functional.embedding(index, table) @ x).tanh()
        return x

    step(table)
    lazy_runtime.sync(wait=True)
    result = unwrap(step(table)).handle.value.array
    assert not result.is_ready()  # started, and at work


def test_a_module():
    layer = torch.nn.Linear(3, 2).to("xla")
    x = torch.ones(4, 3, device="xla")
    lazy_runtime.sync()
    metrics.clear()
    y = lazy_runtime.compile(layer)(x)
    assert metrics.value("ExecuteComputation") == 1
    assert torch.equal(y, layer(x))


def test_an_exception_restores_eager_mode():
    experimental.eager_mode(True)

    @lazy_runtime.compile
    def broken(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        broken(None)
    assert experimental.is_eager_mode()
