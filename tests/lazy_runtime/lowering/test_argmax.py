"""Where the greatest and least elements are, as jax finds it too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from lazy_runtime.jax import function
from lazy_runtime.lowering.argmax import argmax, argmin

NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    "x",
    [
        np.array([[1, 3, 3], [2, 2, 1]], np.float32),
        np.array([[1, NAN, 3], [NAN, NAN, 4]], np.float32),
        np.array([[-INF, -INF], [INF, INF]], np.float32),
        np.array([[False, True], [False, False]]),
        np.array([[-(2**31), 2**31 - 1], [0, -(2**31)]], np.int32),
        np.array([[0, 255], [255, 0]], np.uint8),
    ],
    ids=str,
)
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("keepdims", [False, True])
def test_as_jax_has_it(x, axis, keepdims):
    for ours, theirs in ((argmax, jnp.argmax), (argmin, jnp.argmin)):
        found = jax.jit(lambda x: ours(x, axis, keepdims))(x)  # noqa: B023
        np.testing.assert_array_equal(found, theirs(x, axis, keepdims=keepdims), strict=False)
        assert found.dtype == np.int32
        assert found.shape == theirs(x, axis, keepdims=keepdims).shape


def test_of_nothing():
    with pytest.raises(ValueError, match="an extremum of no elements"):
        argmax(jnp.zeros((2, 0)), 1)


class Places(torch.nn.Module):
    def forward(self, x):
        return x.argmax(), x.min(1).indices, x.long().mode(1).indices


def test_of_64_bits_where_jax_has_none():
    """The user's `jax.jit` lowers what was traced, without 64-bit types."""
    _, places = function(Places())
    greatest, least, most = jax.jit(lambda x: places({}, x))(np.array([[1, 5, 1], [4, 0, 0]], np.float32))
    assert int(greatest) == 1
    assert least.tolist() == [0, 1]
    assert most.tolist() == torch.tensor([[1, 5, 1], [4, 0, 0]]).mode(1).indices.tolist()
