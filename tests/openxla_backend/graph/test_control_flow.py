"""Control flow on data stays in one program, and means what it means in eager torch on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._higher_order_ops import map as torch_map
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from lazy_runtime.compilation import compiler
from tests.openxla_backend.helpers import compiled, counting

DEVICES = ["xla", "cpu"]


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


def check(f: Callable[..., Any], *arguments: torch.Tensor, device: str) -> None:
    """One program gives what eager torch does."""
    wanted = torch.utils._pytree.tree_leaves(f(*arguments))
    fast = compiled(f, fullgraph=True)
    moved = [each.to(device) for each in arguments]
    fast(*moved)
    with counting("UncachedCompile", "ExecuteComputation") as counts:
        found = torch.utils._pytree.tree_leaves(fast(*moved))
    assert counts["UncachedCompile"] == 0
    assert device == "cpu" or counts["ExecuteComputation"] == 1
    for got, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(got.cpu(), expected)


X = torch.arange(12.0).reshape(3, 4) / 7


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sign", [1, -1])
def test_cond(sign, device):
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x, y: x.sin() + y, lambda x, y: x.softmax(-1) - y, (x, y)) * 2

    check(f, X * sign, X.flip(0) + 1, device=device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sign", [1, -1])
def test_what_a_branch_passes_on(sign, device):
    """An operand, a constant, what another one made."""

    def f(x: torch.Tensor) -> Any:
        return torch.cond(
            x.sum() > 0,
            lambda x: (x.clone(), torch.tensor([1.0, 2.0], device=x.device), x + 1),
            lambda x: (x * 2, torch.zeros(2, device=x.device), x.clone()),
            (x,),
        )

    check(f, X * sign, device=device)


@pytest.mark.parametrize("device", DEVICES)
def test_while_loop(device):
    def f(x: torch.Tensor, limit: torch.Tensor, factor: torch.Tensor) -> Any:
        def goes_on(count: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return (x.sum() < limit) & (count < 50)

        def turn(count: torch.Tensor, x: torch.Tensor) -> Any:
            return count + 1, x * factor

        return while_loop(goes_on, turn, (torch.zeros((), dtype=torch.int64, device=x.device), x))

    for limit in (1.0, 100.0, 1e4):  # no turn, and more and more of them
        check(f, X, torch.tensor(limit), torch.tensor(1.5), device=device)


@pytest.mark.parametrize("device", DEVICES)
def test_scan(device):
    def f(start: torch.Tensor, xs: torch.Tensor, scale: torch.Tensor) -> Any:
        return scan(lambda c, x: (c * scale + x, c - x), start, xs, dim=0)

    check(f, torch.ones(4), X, torch.tensor(0.5), device=device)


@pytest.mark.parametrize("device", DEVICES)
def test_map(device):
    check(lambda xs, y: torch_map(lambda x, y: x.cumsum(0) * y, xs, y), X, torch.tensor(3.0), device=device)


@pytest.mark.parametrize("device", DEVICES)
def test_associative_scan(device):
    check(lambda xs: associative_scan(torch.add, xs, dim=0, combine_mode="generic"), X, device=device)


@pytest.mark.parametrize("device", DEVICES)
def test_one_in_another(device):
    def f(xs: torch.Tensor) -> Any:
        def turn(c: torch.Tensor, x: torch.Tensor) -> Any:
            return torch.cond(x.sum() > c.sum(), lambda c, x: c + x, lambda c, x: c - x, (c, x)), x * 1.0

        return scan(turn, torch.zeros(4, device=xs.device), xs, dim=0)

    check(f, torch.cat([X, -X]), device=device)


@pytest.mark.parametrize("device", DEVICES)
def test_regions(device):
    @torch.compiler.nested_compile_region
    def layer(x: torch.Tensor) -> torch.Tensor:
        return x.tanh() * 2

    fast = compiled(lambda x: layer(layer(x)), fullgraph=True)
    torch.testing.assert_close(fast(X.to(device)).cpu(), (X.tanh() * 2).tanh() * 2)


class Choosing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.mean() > 0.5, lambda x: self.one(x).tanh(), lambda x: self.other(x) * 2, (x,)).sum(1)


@pytest.mark.parametrize("device", DEVICES)
def test_training(device):
    torch.manual_seed(0)
    model = Choosing()
    moved = copy.deepcopy(model).to(device)
    fast = compiled(moved)
    for x in (X, X - 1, X):
        model(x).square().mean().backward()
        fast(x.to(device)).square().mean().backward()
        for got, wanted in zip(moved.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(got.grad.cpu(), wanted.grad)


def test_random_numbers_in_a_branch():
    fast = compiled(lambda x: torch.cond(x.sum() > 0, lambda x: torch.rand_like(x), lambda x: x * 1.0, (x,)))
    x = torch.ones(1000, device="xla")
    first, second = fast(x).cpu(), fast(x).cpu()
    assert not torch.equal(first, second)
    assert 0.4 < first.mean() < 0.6


def test_random_numbers_in_a_loop_are_refused():
    fast = compiled(lambda xs: torch_map(lambda x: torch.rand_like(x), xs))
    with pytest.raises(BackendCompilerFailed, match=r"a function of map draws random numbers"):
        fast(X.to("xla"))


# ---- what fails when it runs


@pytest.mark.parametrize("is_taken", [True, False])
def test_a_check_in_a_branch(is_taken):
    """Counts where the branch is taken."""

    def f(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x, i: x[i], lambda x, i: x[:2] * 2, (x, index))

    result = compiled(f)(torch.full((3,), 1.0 if is_taken else -1.0, device="xla"), torch.tensor([0, 7], device="xla"))
    if is_taken:
        with pytest.raises(IndexError, match="index 7 is out of bounds"):
            result.cpu()
    else:
        assert result.tolist() == [-2.0, -2.0]


def test_a_check_in_a_loop():
    """The first turn that fails is the one that is told of."""

    def f(xs: torch.Tensor, index: torch.Tensor) -> Any:
        return torch_map(lambda i, xs: xs[i] * 2, index, xs)

    index = torch.tensor([[0, 1], [2, 9], [8, 0]])
    with pytest.raises(IndexError, match="index 9 is out of bounds"):
        compiled(f)(torch.arange(3.0, device="xla"), index.to("xla")).cpu()
    assert compiled(f)(torch.arange(3.0, device="xla"), index.clamp(max=2).to("xla")).tolist() == [
        [0, 2],
        [4, 4],
        [4, 0],
    ]


def test_a_later_process_finds_it(store):
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    for expected in (1, 0):
        torch._dynamo.reset()
        compiler.clear()
        with counting("UncachedCompile") as counts:
            torch.testing.assert_close(compiled(f)(X.to("xla")).cpu(), X.sin())
        assert counts["UncachedCompile"] == expected
    torch._dynamo.reset()
    compiler.clear()
    fast = compiled(lambda x: torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.exp(), (x,)))
    torch.testing.assert_close(fast(-X.to("xla")).cpu(), (-X).exp())


@pytest.mark.parametrize("device", DEVICES)
def test_a_condition_on_sizes(device, store):
    """Of sizes that come with the calls; a program on disk is not the other branch's."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.shape[0] > 4, lambda y: y.sin(), lambda y: y.cos(), (y,))

    fast = compiled(f, dynamic=True)
    for size in (3, 7, 2):
        x = torch.ones(size, 2)
        torch.testing.assert_close(fast(x.to(device), X.to(device)).cpu(), f(x, X))
