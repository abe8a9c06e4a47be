"""What is known of a program before it is traced."""

from __future__ import annotations

import torch

from lazy_runtime.compilation import compiler, donation, kernel_thread
from lazy_runtime.compilation.plan import CompilePlan
from tests.lazy_runtime.graphs import buffers, number

aten = torch.ops.aten


def exchanged():
    """A graph that updates two donated leaves, the second one first."""
    x, y = buffers(torch.zeros(4), torch.ones(4))
    numbered, kept = number(lambda x, y: (aten.add.Tensor(y, 2), aten.add.Tensor(x, 1)), x, y)
    return numbered.graph._replace(donated=(0, 1)), kept


def test_updates_come_back_to_what_they_update():
    graph, _kept = exchanged()
    plan = CompilePlan(graph)
    first, second = (-1 - operand for operand in graph.operands)  # the leaves in the order of their updates
    assert plan.updates == {first: 0, second: 1}
    # jax gives the k-th donated argument to the k-th result of its kind
    assert (plan.order or (0, 1)) == (plan.updates[0], plan.updates[1])
    assert CompilePlan(graph._replace(donated=())).order is None


def test_each_part_is_computed_once_for_a_program(monkeypatch):
    """Of which the donation order, the lowering and the executable are made."""
    calls = []
    for module, name in ((donation, "origins"), (donation, "updates"), (kernel_thread, "is_of_kernels")):
        function = getattr(module, name)

        def counted(*arguments, name=name, function=function):
            calls.append(name)
            return function(*arguments)

        monkeypatch.setattr(module, name, counted)
    graph, _kept = exchanged()
    compiler.clear()
    compiler.executable(graph)
    assert sorted(calls) == ["is_of_kernels", "origins", "updates"]


def test_a_plan_of_another_graph_keeps_the_names():
    graph, _kept = exchanged()
    plan = CompilePlan(graph, None, ("a", "b"))
    other = plan.of(graph._replace(donated=()))
    assert (other.keep_layout, other.scopes, other.graph.donated) == (None, ("a", "b"), ())


def test_a_program_has_a_place_on_disk(store):
    graph, _kept = exchanged()
    plan = CompilePlan(graph)
    assert plan.place is plan.place is not None
    assert not plan.place.is_taken()
    compiler.clear()
    compiler.executable(graph)
    assert CompilePlan(graph).place.is_taken()
