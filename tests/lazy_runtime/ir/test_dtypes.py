"""Torch's dtypes and jax's."""

from __future__ import annotations

import threading

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from lazy_runtime.ir import dtypes

SUPPORTED = sorted(dtypes._TO_NUMPY, key=str)


@pytest.mark.parametrize("dtype", SUPPORTED, ids=str)
def test_there_and_back(dtype):
    there = dtypes.to_numpy(dtype)
    assert dtypes.to_torch(there) == dtype
    assert there.itemsize == dtype.itemsize
    assert there.name == {"torch.float8_e4m3fn": "float8_e4m3fn"}.get(str(dtype), str(dtype).removeprefix("torch."))


@pytest.mark.parametrize("dtype", [d for d in SUPPORTED if "float8" not in str(d)], ids=str)
def test_values_survive_the_way_to_the_device_and_back(dtype):
    x = torch.tensor([0, 1, 100, 127]).to(dtype)
    there = x.to("xla")
    assert there.dtype == dtype
    assert torch.equal(there.cpu(), x)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.uint64, torch.complex128], ids=str)
def test_64_bits_stay_64_bits(dtype):
    x = torch.tensor([2**53 - 1, 2**40 + 1]).to(dtype)
    assert torch.equal((x.to("xla") * 1).cpu(), x * 1)


@pytest.mark.parametrize("dtype", [torch.complex32, torch.qint8, torch.uint4], ids=str)
def test_dtypes_that_xla_lacks(dtype):
    with pytest.raises(TypeError, match=rf"{dtype} has no counterpart in XLA: convert the tensor to one of bool"):
        dtypes.to_numpy(dtype)
    with pytest.raises(TypeError, match="has no counterpart"):
        dtypes.check_supported(dtype, "cpu")


def test_dtypes_that_one_platform_lacks():
    for platform in ("cpu", "gpu", "tpu"):
        dtypes.check_supported(torch.float64, platform)
    dtypes.check_supported(torch.complex128, "cpu")
    with pytest.raises(TypeError, match=r"torch.complex128 is not supported on TPU devices"):
        dtypes.check_supported(torch.complex128, "tpu")


def test_x64_is_the_threads_own():
    """The user's jax stays as it is: no global flag is set."""
    widths = {}

    def width(name):
        widths[name] = jnp.asarray(np.ones(2, np.float64)).dtype.itemsize

    width("before")
    with dtypes.x64():
        width("inside")
        thread = threading.Thread(target=width, args=("another thread",))
        thread.start()
        thread.join()
    width("after")
    assert widths == {"before": 4, "inside": 8, "another thread": 4, "after": 4}
