"""Many writes into parts of one tensor."""

from __future__ import annotations

import pytest
import torch

from lazy_runtime.lowering import write_chains
from tests.lazy_runtime.graphs import buffers, number
from tests.lazy_runtime.ops.comparison import close

LONGEST = write_chains.LONGEST


def _ends(writes: int, write) -> list[int]:
    def function(x):
        for i in range(writes):
            x = write(x, i)
        return x

    (x,) = buffers(torch.zeros(4096))
    numbered, _kept = number(function, x)
    return sorted(write_chains.ends(numbered.graph))


def _plain(x, i):
    return torch.slice_scatter(x, x[i : i + 2] + 1, 0, i, i + 2)


@pytest.mark.parametrize("writes", [1, LONGEST])
def test_short_chains_are_not_cut(writes):
    assert _ends(writes, _plain) == []


def test_each_chain_is_cut_after_as_many():
    assert len(_ends(4 * (LONGEST + 1), _plain)) == 4


def test_what_stands_between_is_part_of_the_chain():
    assert len(_ends(4 * (LONGEST + 1), lambda x, i: torch.select_scatter(x * 2, x[i] + 1, 0, i))) == 4


def test_writes_that_do_not_follow_each_other_are_no_chain():
    def function(x):
        return torch.stack([_plain(x, i) for i in range(3 * LONGEST)])

    (x,) = buffers(torch.zeros(4096))
    numbered, _kept = number(function, x)
    assert not write_chains.ends(numbered.graph)


@pytest.mark.parametrize("compiled", [False, True])
def test_values(compiled):
    def function(x):
        y = x.clone()
        for i in range(3 * LONGEST):
            y[i : i + 2] *= 1.5
            y[i + 1] += y[i]
        return y

    torch._dynamo.reset()
    x = torch.linspace(0, 1, 4096, requires_grad=True)
    there = x.detach().to("xla").requires_grad_()
    result = (torch.compile(function, backend="openxla") if compiled else function)(there)
    expected = function(x)
    close(result, expected)
    for y in (result, expected):
        (y * y).sum().backward()
    close(there.grad, x.grad)


def test_a_thousand_do_not_overflow_the_compilers_stack(forked_process):
    """The process died of it."""
    forked_process("""
        import torch
        x, y = torch.zeros(16384), torch.zeros(16384, device="xla")
        for z in (x, y):
            for i in range(1000):
                z[i : i + 2] += 1
        assert torch.equal(y.cpu(), x)
    """)
