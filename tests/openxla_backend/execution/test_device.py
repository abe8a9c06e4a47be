"""Runs on xla tensors: writes to arguments, buffers shared with lazy tensors."""

import gc

import pytest
import torch

import lazy_runtime
from lazy_runtime.compilation.plan import CompilePlan
from tests.openxla_backend.helpers import assert_same, compiled


def test_writes_reach_every_alias():
    base = torch.zeros(2, 3, device="xla")
    aliases = [base.view(6), base.t(), base[0], base.detach(), base.data]
    fast = compiled(lambda x: x.add_(1))
    fast(base)
    assert all(set(alias.flatten().tolist()) == {1} for alias in aliases)
    base.mul_(3)
    with torch.inference_mode():
        fast(base)
    assert all(set(alias.flatten().tolist()) == {4} for alias in aliases)


def test_writes_through_a_view_reach_the_base_and_other_views():
    base = torch.zeros(3, 4, device="xla")
    row, column = base[1], base[:, 1]
    fast = compiled(lambda x: x.add_(1))
    fast(row)
    fast(column)
    expected = torch.zeros(3, 4)
    expected[1] += 1
    expected[:, 1] += 1
    assert_same(base, expected, "xla")
    assert_same((row, column), (expected[1], expected[:, 1]), "xla")


def test_writes_bump_the_version_that_autograd_checks():
    weight = torch.ones(3, device="xla", requires_grad=True)
    buffer = torch.ones(3, device="xla")
    y = (weight * buffer).sum()  # saves the buffer
    version = buffer._version
    with torch.no_grad():
        compiled(lambda b: b.add_(1))(buffer)
    assert buffer._version > version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_results_survive_what_lazy_mode_does_with_the_inputs():
    """Buffers that a compiled call has seen or made may be donated by a later sync only when nobody has them."""
    x = torch.ones(1000, device="xla")
    fast = compiled(lambda x: (x * 2, x.detach()))
    y, same = fast(x)
    kept = y.detach()
    for _ in range(3):
        x = x * 3
        y = y + x
        lazy_runtime.sync()
    assert kept.sum().item() == 2000
    assert same.sum().item() == 1000
    assert y.sum().item() == 1000 * (2 + 3 + 9 + 27)


def test_written_arguments_can_go_on_in_lazy_mode():
    x, expected = torch.ones(4, device="xla"), torch.ones(4)
    fast = compiled(lambda x: x.mul_(2).sum())
    for _ in range(3):
        assert_same(fast(x), expected.mul_(2).sum(), "xla")
        x.add_(3)
        expected.add_(3)
        lazy_runtime.sync()
    assert_same(x, expected, "xla")


def test_a_compiled_program_lets_go_of_its_plan():
    """Which holds the graph in parts: a program is kept for as long as its function."""

    def of_calls(name):
        plans = [found for found in gc.get_objects() if type(found) is CompilePlan]
        return [plan for plan in plans if any(call.name == name for call in plan.graph.calls)]

    fast = compiled(lambda x: x.erfinv() * 2)
    fast(torch.zeros(3, device="xla")).cpu()
    gc.collect()
    assert of_calls("aten::erfinv") == []
    assert fast(torch.zeros(3, device="xla")).tolist() == [0, 0, 0]
