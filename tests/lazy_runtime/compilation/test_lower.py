"""Graphs as jax functions: values, layouts, and errors that name the call."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import lazy_runtime
from lazy_runtime.compilation import lower
from lazy_runtime.compilation.plan import CompilePlan
from lazy_runtime.ir import dtypes
from lazy_runtime.ops import registry
from tests.lazy_runtime.graphs import buffers, number

aten = torch.ops.aten


def run(numbered, *tensors, keep_layout=frozenset(), numbers=()):
    physical = set()
    function = lower.to_function(CompilePlan(numbered.graph, keep_layout), physical, [])
    with dtypes.x64():
        return jax.jit(function)(*(x.handle.value.array for x in tensors), *numbers), physical


def test_values():
    x, y = buffers(torch.arange(6.0).reshape(2, 3), torch.arange(3.0))
    numbered, _kept = number(lambda x, y: (x * 2 + y, (x * 2).sum(1)), x, y)
    (first, second), _ = run(numbered, x, y)
    assert first.tolist() == [[0, 3, 6], [6, 9, 12]]
    assert second.tolist() == [6, 24]


def image_graph():
    x, w = buffers(torch.arange(1.0, 97).reshape(2, 3, 4, 4), torch.arange(1.0, 13).reshape(4, 3, 1, 1))

    def function(x, w):
        y = aten.convolution(x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        return y, aten.relu(y), aten.sum(y)

    numbered, kept = number(function, x, w)
    return numbered, kept, x, w


@pytest.mark.parametrize(("keep", "expected"), [(frozenset(), set()), (frozenset([1, 2]), {1}), (None, {0, 1})])
def test_which_outputs_stay_channels_last(keep, expected):
    numbered, _kept, x, w = image_graph()
    results, physical = run(numbered, x, w, keep_layout=keep)
    assert physical == expected
    reference = torch.nn.functional.conv2d(
        torch.arange(1.0, 97).reshape(2, 3, 4, 4), torch.arange(1.0, 13).reshape(4, 3, 1, 1)
    ).numpy()
    for i in (0, 1):
        array = jnp.moveaxis(results[i], -1, 1) if i in physical else results[i]
        np.testing.assert_array_equal(np.asarray(array), reference)  # small whole numbers: exact


def test_a_leaf_that_is_channels_last():
    x = torch.arange(24.0).reshape(2, 3, 4, 1)
    (there,) = buffers(x)
    there.handle.value.channels_last = True
    numbered, _kept = number(lambda x: aten.slice.Tensor(x, 1, 0, 2), there)
    with dtypes.x64():
        (result,) = jax.jit(lower.to_function(CompilePlan(numbered.graph), set(), []))(x.movedim(1, -1).numpy())
    np.testing.assert_array_equal(np.asarray(result), x[:, :2].numpy())


def test_an_output_that_takes_a_donated_buffer_has_torchs_order():
    numbered, _kept, x, w = image_graph()
    taken = numbered.graph._replace(leaves=(numbered.graph.calls[0].outputs[0], *numbered.graph.leaves), donated=(0,))
    physical = set()
    taken = taken._replace(operands=tuple(slot - 1 if slot < 0 else slot for slot in taken.operands))
    function = lower.to_function(CompilePlan(taken, None), physical, [])
    with dtypes.x64():
        function(jnp.zeros((2, 4, 4, 4), "float32"), x.handle.value.array, w.handle.value.array)
    assert physical == set()


@pytest.fixture
def relu(monkeypatch):
    """Registers another lowering of relu for the test."""
    monkeypatch.delitem(registry.table, aten.relu.default)

    def register(function):
        monkeypatch.delitem(registry.table, aten.relu.default, raising=False)
        registry.op("aten::relu")(function)

    return register


def fail(x):
    raise TypeError("of what the lowering says")


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (fail, r"TypeError: of what the lowering says"),
        (lambda x: x[1:], r"the lowering gave float32\[1, 3\] instead of float32\[2,3\] on xla:0"),
        (lambda x: x.astype(jnp.int32), r"the lowering gave int32\[2, 3\] instead of float32\[2,3\] on xla:0"),
    ],
)
def test_an_error_names_the_call(relu, function, problem):
    relu(function)
    y = torch.relu(torch.ones(2, 3, device="xla"))
    start = r"aten::relu\(float32\[2,3\] on xla:0\) -> float32\[2,3\] on xla:0 cannot be lowered to XLA: "
    with pytest.raises(lower.LoweringError, match=start + problem) as caught:
        lazy_runtime.sync()
    assert caught.value.call.name == "aten::relu"
    with pytest.raises(lower.LoweringError, match=start + problem):  # whoever needs the value is told why there is none
        y.cpu()


def test_a_wrong_number_of_outputs(monkeypatch):
    monkeypatch.delitem(registry.table, aten.max.dim)
    registry.op("aten::max.dim")(lambda x, dim, keepdim=False: [x.max(dim)])
    kept = torch.ones(7, 11, 2, device="xla").max(1)  # of a shape that no other test has compiled
    with pytest.raises(lower.LoweringError, match=r"aten::max.dim.*the lowering gave 1 outputs instead of 2"):
        lazy_runtime.sync()
    del kept
