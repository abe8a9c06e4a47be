"""Tensors as jax arrays, without a copy and without either seeing the other's writes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
import torch

import lazy_runtime
from lazy_runtime.jax import asarray, from_array


def place(array):
    return array.addressable_shards[0].data.unsafe_buffer_pointer()


def test_there_and_back_without_a_copy():
    x = torch.arange(6.0, device="xla").view(2, 3) * 2
    array = asarray(x)
    assert isinstance(array, jax.Array)
    assert array.tolist() == [[0, 2, 4], [6, 8, 10]]
    assert place(asarray(x)) == place(array)
    y = from_array(array)
    assert y.device == x.device
    assert place(asarray(y)) == place(array)
    assert torch.equal(y.cpu(), x.cpu())


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int64, torch.float64, torch.bfloat16, torch.complex64, torch.uint32]
)
@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_dtypes_stay(device, dtype):
    x = torch.tensor([[0, 1], [1, 0]]).to(dtype)
    array = asarray(x.to(device))
    assert array.shape == (2, 2)
    assert torch.equal(from_array(array).cpu(), x)
    assert from_array(array).dtype == dtype


def test_writes_do_not_reach_the_other():
    x = torch.ones(3, device="xla")
    array = asarray(x)
    x.add_(1)
    lazy_runtime.sync()
    assert array.tolist() == [1, 1, 1]
    given = jnp.ones(3)
    y = from_array(given)
    y.mul_(5)
    assert y.tolist() == [5, 5, 5]
    assert given.tolist() == [1, 1, 1]
    host = torch.ones(3)
    array = asarray(host)
    host.zero_()
    assert array.tolist() == [1, 1, 1]


def test_a_step_that_takes_parameters_over_leaves_arrays_alone():
    layer = torch.nn.Linear(64, 64, device="xla")
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    held = asarray(layer.weight)
    before = held.tolist()
    for _ in range(3):
        layer(torch.ones(2, 64, device="xla")).sum().backward()
        optimizer.step()
        lazy_runtime.sync()
    assert held.tolist() == before
    assert not torch.equal(layer.weight.cpu(), torch.tensor(before))


def test_a_tensor_whose_array_jax_has_donated():
    given = jnp.ones(1 << 12)
    x = from_array(given)
    jax.jit(lambda a: a + 1, donate_argnums=0)(given)
    with pytest.raises(RuntimeError, match=r"[Dd]eleted|donated"):
        x.cpu()


def test_it_is_what_the_tensor_shows():
    x = torch.arange(6.0, device="xla").view(2, 3)
    assert asarray(x.t()[1:]).tolist() == [[1, 4], [2, 5]]
    assert asarray(torch.arange(6.0).view(2, 3).t()[1:]).tolist() == [[1, 4], [2, 5]]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (lambda: torch.ones(2), TypeError, "takes a jax array, not Tensor"),
        (lambda: jnp.ones(2, jnp.int4), TypeError, "torch has no dtype like int4"),
        (lambda: jax.random.key(0), TypeError, r"jax\.random\.key_data"),
    ],
)
def test_what_is_no_array_of_torchs(given, error, message):
    with pytest.raises(error, match=message):
        from_array(given())


def test_what_jax_has_no_array_for():
    with pytest.raises(TypeError, match=r"torch\.bits8 has no counterpart in XLA"):
        asarray(torch.empty(2, dtype=torch.bits8))
    with pytest.raises(TypeError, match=r"jax has no arrays of torch\.sparse_coo"):
        asarray(torch.eye(2).to_sparse())
