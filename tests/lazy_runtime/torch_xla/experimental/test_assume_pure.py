"""`experimental.assume_pure`: the Python of a function runs once for each look of its arguments."""

from __future__ import annotations

import copy

import jax.numpy as jnp
import pytest
import torch
from torch import nn

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.torch_xla.experimental import assume_pure as module
from lazy_runtime.torch_xla.experimental.assume_pure import PureModule, assume_pure, assume_pure_torch, j2t_autograd
from lazy_runtime.torch_xla.experimental.scan import scan


def test_values_gradients_and_traces():
    torch.manual_seed(0)
    a, b = torch.randn(3, 4), torch.randn(4, 2)
    traced = []

    @assume_pure
    def function(tree, factor, *, power):
        traced.append(1)
        return {"y": (tree["a"] @ tree["b"]).sin() * factor**power, "none": None}

    counts = []
    for _ in range(3):
        mine = [x.to("xla").requires_grad_() for x in (a, b)]
        found = function(dict(zip("ab", mine, strict=True)), 2.0, power=3)
        found["y"].pow(2).sum().backward()
        counts.append(len(traced))
    expected = [x.clone().requires_grad_() for x in (a, b)]
    (torch.sin(expected[0] @ expected[1]) * 8).pow(2).sum().backward()
    assert counts[0] == counts[2]
    assert found["none"] is None
    for x, other in zip(mine, expected, strict=True):
        torch.testing.assert_close(x.grad.cpu(), other.grad, rtol=1e-4, atol=1e-5)
    function({"a": mine[0], "b": mine[1]}, 3.0, power=3)  # another value
    with torch.no_grad():
        function({"a": mine[0], "b": mine[1]}, 2.0, power=3)
    assert len(traced) == 3 * counts[0]
    torch.testing.assert_close(function({"a": a, "b": b}, 2.0, power=3)["y"], torch.sin(a @ b) * 8)  # on the CPU


def test_random_numbers():
    plain = assume_pure(lambda x: x + torch.rand_like(x))
    seeded = assume_pure(lambda x: x + torch.rand_like(x), add_rng_seed_argument=True)
    x = torch.zeros(5, device="xla")
    assert not torch.equal(plain(x).cpu(), plain(x).cpu())
    first = seeded(x, rng_seed=1).cpu()
    assert torch.equal(first, seeded(x, rng_seed=1).cpu())
    assert not torch.equal(first, seeded(x, rng_seed=2).cpu())
    with pytest.raises(TypeError, match="pass rng_seed"):
        seeded(x)


def test_writes_are_refused():
    with pytest.raises(RuntimeError, match="in-place operation"):
        assume_pure(lambda x: x.add_(1))(torch.ones(2, device="xla"))


def test_modules():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))
    pure = PureModule(copy.deepcopy(plain)).to("xla")
    x = torch.randn(5, 3)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (plain, pure)]
    for _ in range(3):
        for module_, optimizer, device in ((plain, optimizers[0], "cpu"), (pure, optimizers[1], "xla")):
            optimizer.zero_grad()
            module_(x.to(device)).pow(2).sum().backward()
            optimizer.step()
        lazy_runtime.sync()
    for mine, torchs in zip(pure.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.cpu(), torchs, rtol=1e-4, atol=1e-5)


def test_one_within_another_and_within_a_scan():
    inner = assume_pure(lambda x: x * 2)
    of_jax = j2t_autograd(lambda c, x: jnp.tanh(c + x))
    outer = assume_pure(lambda x: of_jax(inner(x), x) + 1)
    x = torch.randn(3)
    mine = x.to("xla").requires_grad_()
    outer(mine).sum().backward()
    other = x.clone().requires_grad_()
    (torch.tanh(other * 3) + 1).sum().backward()
    torch.testing.assert_close(mine.grad.cpu(), other.grad)

    def step(carry, x):
        made = of_jax(carry, x)
        return made, made

    carry, ys = scan(step, torch.zeros(3, device="xla"), x.to("xla").reshape(3, 1).expand(3, 3))
    expected = torch.zeros(3)
    for each in x:
        expected = torch.tanh(expected + each)
    torch.testing.assert_close(carry.cpu(), expected)
    torch.testing.assert_close(ys[-1].cpu(), expected)


def test_without_gradients():
    with torch.no_grad():
        weight, traced = torch.randn(3, 3, device="xla"), []

        def function(x, *, twice):
            traced.append(1)
            return x @ weight * (2 if twice else 1), None

        kept = assume_pure_torch(function, use_cache=True)
        x = torch.randn(2, 3, device="xla")
        for _ in range(2):
            found, nothing = kept(x, twice=True)
        assert (len(traced), nothing) == (1, None)
        torch.testing.assert_close(found.cpu(), x.cpu() @ weight.cpu() * 2)
        fresh, _ = assume_pure_torch(function)(x, twice=False)
        torch.testing.assert_close(fresh.cpu(), x.cpu() @ weight.cpu())
    module._XLA_COMPUTATION_CACHE.clear()
    with pytest.raises(RuntimeError, match="has no gradients"):
        assume_pure_torch(function)


def test_stand_ins():
    x = torch.ones(2, 3, device="xla", dtype=torch.bfloat16, requires_grad=True)
    before = metrics.value("ExecuteComputation")
    found = module.make_fake_inputs(x)
    assert (found.shape, found.dtype, found.device, found.requires_grad) == (x.shape, x.dtype, x.device, True)
    assert metrics.value("ExecuteComputation") == before
    assert module.make_fake_inputs("a") == "a"
