"""Nested arguments and results of jax functions, and what is refused."""

from __future__ import annotations

import gc
import traceback
import weakref
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import lazy_runtime.jax
from lazy_runtime.jax import call


class Pair(NamedTuple):
    first: torch.Tensor
    rest: dict[str, torch.Tensor]


def test_nests_come_and_go():
    def swapped(pair, *, by):
        return Pair(pair.rest["x"] + by, {"x": pair.first, "none": None})

    x, y = torch.ones(2, device="xla"), torch.zeros(3, device="xla")
    found = call(swapped, Pair(x, {"x": y}), by=2)
    assert type(found) is Pair
    assert found.first.tolist() == [2, 2, 2]
    assert found.rest["x"].tolist() == [1, 1]
    assert found.rest["none"] is None


def test_each_kind_of_constant_is_traced_once():
    traced = []

    def scaled(x, factor):
        traced.append(factor)
        return x * factor

    x = torch.tensor([3], device="xla")
    for factor in (2, 2, 2.0, True, 2, np.array([2]), np.array([2]), np.array([4])):
        found = call(scaled, x, factor)
        assert found.tolist() == [3 * factor]
        assert found.dtype.is_floating_point == isinstance(factor, float)
    assert len(traced) == 5


def test_no_tensor_is_kept():
    x = torch.ones(2, device="xla", requires_grad=True)
    held = weakref.ref(x)
    call(lambda x: x * 2, x).sum().backward()
    del x
    gc.collect()
    assert held() is None


def test_the_nest_of_the_results_is_that_of_each_look():
    def either(x):
        return x if x.ndim == 1 else {"sum": x.sum(), "x": [x]}

    for _ in range(2):
        assert call(either, torch.ones(2, device="xla")).tolist() == [1, 1]
        found = call(either, torch.ones(1, 2, device="xla"))
        assert found["sum"].item() == 2
        assert found["x"][0].tolist() == [[1, 1]]


@pytest.mark.parametrize("device", ["xla", "cpu"])
@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey], ids=["typed", "numbers"])
def test_random_keys_are_operands(make, device):
    traced = []

    def noisy(key, x):
        traced.append(x.shape)
        return x + jax.random.normal(key, x.shape, x.dtype)

    x = torch.zeros(4, device=device)
    found = [call(noisy, make(seed), x).cpu() for seed in (1, 2, 1)]
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])
    assert found[1].tolist() == jax.random.normal(make(2), (4,)).tolist()
    assert len(traced) == 1


def test_integers_have_no_gradient():
    def taken(table, rows, factor):
        return table[rows] * factor, rows + 1

    table = torch.arange(6.0, device="xla").view(3, 2).requires_grad_()
    rows = torch.tensor([2, 0, 2], device="xla")
    found, more = call(taken, table, rows, 3)
    assert found.requires_grad
    assert not more.requires_grad
    assert more.dtype == torch.int64
    found.sum().backward()
    assert table.grad.tolist() == [[3, 3], [0, 0], [6, 6]]


def test_numbers_are_results_too():
    found = call(
        lambda x: (x.ndim, 0.5, np.float64(2), np.arange(3)), torch.ones(2, 2, dtype=torch.float64, device="xla")
    )
    assert [each.dtype for each in found] == [torch.int64, torch.float64, torch.float64, torch.int64]
    assert [each.tolist() for each in found] == [2, 0.5, 2, [0, 1, 2]]


@pytest.mark.parametrize(
    ("function", "arguments", "error", "message"),
    [
        (jnp.sin, lambda x: (1.0,), TypeError, "sin gets no tensor, so it has no device"),
        (jnp.add, lambda x: (x, x.cpu()), ValueError, "argument 1 of add is on cpu, and the first tensor on xla:0"),
        (len, lambda x: ([x, x.cpu()],), ValueError, r"argument 0\[1\] of len is on cpu"),
        (jnp.add, lambda x: (x.to("meta"), x), ValueError, "argument 0 of add is on meta: jax functions take xla"),
        (jnp.add, lambda x: (x, {1, 2}), TypeError, "argument 1 of add is set, which is no tensor, and no constant"),
        (type, lambda x: (x,), TypeError, "type returns .*, which is no array"),
        (lambda x: {"a": (x, "b")}, lambda x: (x,), TypeError, r"returns str as its result\['a'\]\[1\], which is no"),
        (lambda x: jax.random.key(0), lambda x: (x,), TypeError, "returns a random key: have it return jax.random.key"),
        (lambda x: x.astype(jnp.int4), lambda x: (x,), TypeError, "gives int4, which torch does not have"),
        (jnp.matmul, lambda x: (x, x[:1]), TypeError, "contracting dimensions to have the same shape"),
    ],
)
def test_what_is_refused(function, arguments, error, message):
    with pytest.raises(error, match=message):
        call(function, *arguments(torch.ones(2, device="xla")))


def test_errors_of_tracing_name_the_users_line():
    def branching(x):
        if x.sum() > 0:  # this line
            return x
        return -x

    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        call(branching, torch.ones(2, device="xla"))
    lines = [frame.line for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert any("# this line" in line for line in lines)


def test_a_function_with_side_effects_leaks_tracers_to_jax_alone():
    leaked = []
    found = call(lambda x: leaked.append(x) or x + 1, torch.ones(2, device="xla"))
    assert found.tolist() == [2, 2]
    with pytest.raises(jax.errors.UnexpectedTracerError):
        call(lambda x: x + leaked[0], torch.ones(2, device="xla"))
    with pytest.raises(TypeError, match=r"from_array takes an array that has values, not .*, which jax traces"):
        lazy_runtime.jax.from_array(leaked[0])
