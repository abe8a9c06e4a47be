import jax
import jax.numpy as jnp
import numpy as np
import torch

from lazy_runtime.ops import computation

FLOATS = jax.ShapeDtypeStruct((3,), np.float32)


def test_equal_functions_have_one_digest():
    first = computation.trace(lambda x: [jnp.sin(x) * 2], [FLOATS], "cpu")
    again = computation.trace(lambda x: [jnp.sin(x) * 2], [FLOATS], "cpu")
    other = computation.trace(lambda x: [jnp.sin(x) * 3], [FLOATS], "cpu")
    assert first is again
    assert first.digest != other.digest
    assert [(each.shape, each.dtype) for each in first.outputs] == [((3,), np.float32)]


def test_closed_over_values_are_part_of_the_digest():
    digests = {computation.trace(lambda x, c=c: [x + c], [FLOATS], "cpu").digest for c in (np.ones(3), np.zeros(3))}
    assert len(digests) == 2


def test_on_both_devices():
    traced = computation.trace(lambda x, y: [x + y, x.sum()], [FLOATS, FLOATS], "cpu")
    x, y = torch.randn(3), torch.randn(3)
    for device in ("cpu", "xla"):
        found = torch.ops.lazy_runtime.computation([x.to(device), y.to(device)], traced.digest)
        torch.testing.assert_close([each.cpu() for each in found], [x + y, x.sum()])


def test_64_bits_stay_where_they_come_in():
    wide = jax.ShapeDtypeStruct((3,), np.int64)
    assert computation.trace(lambda x: [x + jnp.arange(3)], [wide], "cpu").outputs[0].dtype == np.int64
    assert computation.trace(lambda x: [x + jnp.ones(3)], [FLOATS], "cpu").outputs[0].dtype == np.float32
    assert computation.trace(lambda x: [x + jnp.ones(3)], [FLOATS], "cpu", x64=True).outputs[0].dtype == np.float64
