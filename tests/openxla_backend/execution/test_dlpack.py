"""One memory of two frameworks."""

from __future__ import annotations

import jax
import pytest
import torch

from lazy_runtime.ir import dtypes
from openxla_backend.execution import dlpack

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64]


@pytest.fixture
def unknown(monkeypatch):
    """As in a process that has not found out yet which way is the cheapest."""
    for name in ("importer", "exporter"):
        monkeypatch.setattr(dlpack, name, getattr(dlpack, name).__wrapped__)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_array_lies_where_the_tensor_lies(dtype):
    tensor = torch.zeros(64, dtype=dtype)
    with dtypes.x64():
        array = dlpack.import_tensor(tensor)
    assert array.unsafe_buffer_pointer() == tensor.data_ptr()
    assert dlpack.exporter("cpu")(array).data_ptr() == tensor.data_ptr()
    assert str(array.dtype) == str(tensor.dtype).removeprefix("torch.")


def test_what_is_strided_or_conjugated_is_copied():
    values = torch.randn(4, 6, dtype=torch.complex64)
    for tensor in (values.t(), values[:, ::2], values.conj(), values[1:, 1]):
        with dtypes.x64():
            array = dlpack.import_tensor(tensor)
        assert torch.equal(torch.tensor(array.tolist()), tensor.resolve_conj())


def test_neither_way_goes_through_jaxs_python(unknown, monkeypatch):
    def put(*args, **kwargs):
        raise AssertionError("jax.device_put takes 20 microseconds")

    # the first to ask is not within `dtypes.x64()`, as a program that is made
    export, import_ = dlpack.exporter("cpu"), dlpack.importer("cpu")
    monkeypatch.setattr(jax, "device_put", put)
    assert export is not torch.from_dlpack
    with dtypes.x64():
        assert import_(torch.ones(3, dtype=torch.int64)).tolist() == [1, 1, 1]
