"""Specs say of a tensor what torch says of it."""

from __future__ import annotations

import pytest
import torch

from lazy_runtime.ir import dtypes
from lazy_runtime.ir.spec import TensorSpec, contiguous_strides, storage_size
from lazy_runtime.platform import xla_devices

BASE = torch.arange(120).reshape(2, 3, 4, 5)
TENSORS = {
    "contiguous": BASE,
    "transposed": BASE.transpose(1, 3),
    "channels last": BASE.to(memory_format=torch.channels_last),
    "slice": BASE[:, 1:, ::2],
    "expanded": BASE[:1].expand(7, 3, 4, 5),
    "one": torch.ones(1, 1).expand(1, 1),
    "scalar": torch.ones(()),
    "empty": torch.ones(0, 3),
    "empty inside": torch.ones(2, 0, 3).transpose(0, 2),
    "size one of odd stride": torch.ones(4, 4)[:, :1].transpose(0, 1),
}


@pytest.fixture
def device():
    return xla_devices.get(torch.device("xla:0"))


@pytest.fixture(params=TENSORS)
def tensor(request):
    return TENSORS[request.param]


def test_equal_specs_are_one_object(device):
    spec = TensorSpec.of(device, torch.float32, (2, 3))
    assert TensorSpec.of(device, torch.float32, (2, 3), (3, 1), 0) is spec
    others = [
        TensorSpec.of(device, torch.float64, (2, 3)),
        TensorSpec.of(device, torch.float32, (3, 2)),
        TensorSpec.of(device, torch.float32, (2, 3), (1, 2)),
        TensorSpec.of(device, torch.float32, (2, 3), (3, 1), 1),
    ]
    assert len({spec, *others}) == 5


def test_like_and_meta_are_inverses(device, tensor):
    spec = TensorSpec.like(device, tensor)
    meta = spec.meta()
    assert meta.device.type == "meta"
    for x in (meta, spec):
        assert (tuple(x.shape), x.dtype) == (tuple(tensor.shape), tensor.dtype)
    assert (meta.stride(), meta.storage_offset()) == (tensor.stride(), tensor.storage_offset())
    assert TensorSpec.like(device, meta) is spec


def test_properties(device, tensor):
    spec = TensorSpec.like(device, tensor)
    assert spec.numel == tensor.numel()
    assert spec.is_contiguous == tensor.is_contiguous()
    assert contiguous_strides(spec.shape) == torch.empty(spec.shape).stride()
    elements = storage_size(spec.shape, spec.stride)
    nbytes = torch.empty_strided(spec.shape, spec.stride, dtype=torch.uint8).untyped_storage().nbytes()
    assert elements == nbytes


def test_expanded_takes_no_memory(device):
    expanded = TensorSpec.of(device, torch.float64, (10**6, 10**6)).expanded()
    assert (expanded.shape, expanded.dtype, expanded.device.type) == ((10**6, 10**6), torch.float64, "cpu")
    assert expanded.untyped_storage().nbytes() == 8


def test_aval(device):
    spec = TensorSpec.of(device, torch.bfloat16, (2, 3, 4, 5), (60, 1, 15, 3))
    with dtypes.x64():
        assert (spec.aval().shape, str(spec.aval().dtype)) == ((2, 3, 4, 5), "bfloat16")
        assert spec.aval(channels_last=True).shape == (2, 4, 5, 3)
        assert spec.aval().sharding == device.sharding


def test_repr(device):
    assert repr(TensorSpec.of(device, torch.float32, (2, 3))) == "float32[2,3] on xla:0"
    assert repr(TensorSpec.of(device, torch.int64, (2, 3), (1, 2))) == "int64[2,3] strides (1,2) on xla:0"
    assert repr(TensorSpec.of(device, torch.bool, ())) == "bool[] on xla:0"
