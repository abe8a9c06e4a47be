"""Operators of torch's that a program calls on the host."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from lazy_runtime.ir import dtypes
from lazy_runtime.lowering import checks
from lazy_runtime.ops import host_call
from lazy_runtime.tensor.host_arrays import from_numpy, to_numpy

aten = torch.ops.aten


def called(func, tensors, arguments=lambda *arrays: arrays, results=None, call=0):
    """What a program gives that calls the operator on the host.

    Args:
        arguments: makes the operator's arguments of arrays.
        results: what they look like, None for an undefined one; by default as torch says.
        call: number of the call that is lowered.
    """
    if results is None:
        results = torch.utils._pytree.tree_leaves(func(*arguments(*tensors)))
    wanted = [None if x is None else jax.ShapeDtypeStruct(x.shape, dtypes.to_numpy(x.dtype)) for x in results]

    def program(*arrays):
        with checks.collecting() as collector:
            collector.call = call
            return host_call.on_host(func, arguments(*arrays), wanted)

    with dtypes.x64():
        found = jax.jit(program)(*(jnp.asarray(to_numpy(x)) for x in tensors))
        return [None if x is None else from_numpy(np.asarray(x)) for x in found]


EDGES = {
    torch.bool: [True, False],
    torch.uint8: [0, 255],
    torch.int32: [-(2**31), 2**31 - 1],
    torch.int64: [-(2**63), 2**53 + 1],
    torch.bfloat16: [1.0, float("-inf")],
    torch.float16: [65504.0, float("nan")],
    torch.float32: [1e-45, float("inf")],
    torch.float64: [1 + 2**-52, -0.0],
    torch.complex64: [1 + 2j, complex(0, float("inf"))],
    torch.complex128: [complex(1 + 2**-52, -(2**-1060)), 3j],
}


@pytest.mark.parametrize("dtype", EDGES, ids=str)
def test_values_cross_with_all_their_bits(dtype):
    x = torch.tensor(EDGES[dtype], dtype=dtype).reshape(1, 2)
    (found,) = called(aten.clone.default, [x], lambda x: (x, None), results=[x])
    assert found.dtype == dtype
    assert torch.equal(found.view(torch.uint8), x.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 0)], ids=str)
def test_scalars_and_empty_tensors_cross(shape, dtype):
    x = torch.ones(shape, dtype=dtype)
    (found,) = called(aten.neg.default, [x])
    assert (found.shape, found.dtype) == (x.shape, dtype)
    assert torch.equal(found, -x)


def test_numbers_and_keywords_are_given_as_the_schema_has_them():
    x, y = torch.arange(3.0), torch.ones(3)
    (found,) = called(aten.add.Tensor, [x, y], lambda x, y: (x, y, 2.5), results=[x])
    assert torch.equal(found, torch.add(x, y, alpha=2.5))


def test_tensors_may_stand_in_lists():
    x, y = torch.arange(3.0), torch.ones(2)
    (found,) = called(aten.cat.default, [x, y], lambda x, y: ([x, y, x], 0))
    assert torch.equal(found, torch.cat([x, y, x]))


def test_results_come_in_order():
    x = torch.tensor([[3.0, 1.0], [0.0, 2.0]])
    values, places = called(aten.sort.default, [x], lambda x: (x, 1, True))
    assert torch.equal(values, x.sort(1, descending=True)[0])
    assert torch.equal(places, x.sort(1, descending=True)[1])


def test_a_result_with_other_strides_comes_in_torchs_order():
    x = torch.arange(6.0).reshape(2, 3)
    (found,) = called(aten.t.default, [x])
    assert torch.equal(found, x.t())


def test_an_undefined_result_is_none():
    gradient, x, weight = torch.ones(1, 1, 3), torch.arange(4.0).reshape(1, 1, 4), torch.ones(1, 1, 2)

    def arguments(gradient, x, weight):
        return gradient, x, weight, [0], [1], [0], [1], False, [0], 1, [False, True, False]

    expected = aten.convolution_backward.default(*arguments(gradient, x, weight))
    found = called(
        aten.convolution_backward.default, [gradient, x, weight], arguments, results=[None, expected[1], None]
    )
    assert found[0] is found[2] is None
    assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize(
    ("func", "tensors", "rest", "kind"),
    [
        (aten.take.default, [torch.ones(3), torch.tensor([7])], (), "IndexError"),
        (aten.linalg_cholesky.default, [-torch.eye(2)], (False,), "LinAlgError"),
        (aten.mm.default, [torch.ones(2, 3), torch.ones(2, 3)], (), "RuntimeError"),
    ],
)
def test_an_error_says_its_type_and_the_number_of_the_call(func, tensors, rest, kind):
    with pytest.raises((RuntimeError, IndexError)) as expected:
        func(*tensors)
    with pytest.raises(RuntimeError) as caught:
        called(func, tensors, lambda *arrays: (*arrays, *rest), results=tensors[:1], call=5)
    assert f"[aten #5 {kind}] {expected.value} [end]" in str(caught.value)
