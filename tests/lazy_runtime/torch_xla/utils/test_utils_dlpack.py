"""Memory shared through DLPack."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch

import lazy_runtime
from lazy_runtime.torch_xla.runtime import device_type
from lazy_runtime.torch_xla.utils import dlpack

on_cpu = pytest.mark.skipif(device_type() != "CPU", reason="shares the CPU's memory")


@on_cpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("capsule", [False, True])
def test_there_and_back_in_one_memory(dtype, capsule):
    source = torch.arange(32).to(dtype).reshape(4, 8)
    x = dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(source) if capsule else source)
    assert (x.device, x.dtype) == (torch.device("xla:0"), dtype)
    assert torch.equal(x.cpu(), source)
    back = torch.utils.dlpack.from_dlpack(dlpack.to_dlpack(x))
    assert back.data_ptr() == source.data_ptr()


@on_cpu
def test_shared_memory_is_never_reused():
    source = torch.arange(16.0)
    x = dlpack.from_dlpack(source)
    y = torch.ones(16, device="xla") + 1
    seen = torch.from_dlpack(dlpack.to_dlpack(y))
    x.add_(1)
    y.mul_(3)
    lazy_runtime.sync(wait=True)
    assert x.tolist() == [n + 1 for n in range(16)]
    assert y.tolist() == [6] * 16
    assert source.tolist() == list(range(16))
    assert seen.tolist() == [2] * 16


@on_cpu
def test_other_frameworks_and_memory_that_must_be_copied():
    assert dlpack.from_dlpack(np.arange(4)).tolist() == [0, 1, 2, 3]
    assert dlpack.from_dlpack(torch.arange(8)[3:]).tolist() == [3, 4, 5, 6, 7]
    assert dlpack.from_dlpack(torch.arange(6).view(2, 3).t()).tolist() == [[0, 3], [1, 4], [2, 5]]
    array = jax.numpy.arange(5, dtype="int32")
    x = dlpack.from_dlpack(array)
    assert (x.dtype, x.tolist()) == (torch.int32, [0, 1, 2, 3, 4])
    view = torch.from_dlpack(dlpack.to_dlpack(torch.arange(6, device="xla").view(2, 3).t()))
    assert view.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_only_xla_tensors_are_exported():
    with pytest.raises(TypeError, match="expected a tensor on an xla device"):
        dlpack.to_dlpack(torch.ones(1))
