"""Copies from the host to devices and back: values, strides, and what cannot go."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lazy_runtime.common import metrics
from lazy_runtime.execution import transfer
from lazy_runtime.ir.spec import TensorSpec
from lazy_runtime.platform import xla_devices
from lazy_runtime.tensor.xla_tensor import unwrap

BASE = torch.arange(24.0).reshape(2, 3, 4)
TENSORS = {
    "contiguous": BASE,
    "transposed": BASE.transpose(0, 2),
    "slice": BASE[:, 1:, ::2],
    "expanded": BASE[:1].expand(5, 3, 4),
    "channels last": torch.arange(48.0).reshape(1, 2, 4, 6).contiguous(memory_format=torch.channels_last),
    "scalar": torch.tensor(1.5),
    "empty": torch.ones(2, 0, 3),
}


@pytest.fixture
def device():
    return xla_devices.get(torch.device("xla:0"))


@pytest.fixture(params=TENSORS)
def tensor(request):
    return TENSORS[request.param]


# ---- to the device


def test_a_copy_has_the_strides_that_torch_gives_to_copies(device, tensor):
    copy = transfer.to_device(tensor, device)
    assert (copy.spec.dtype, copy.spec.shape) == (tensor.dtype, tuple(tensor.shape))
    assert copy.spec.stride == torch.empty_like(tensor).stride()
    assert copy.spec.offset == 0


def test_a_buffer_is_dense_and_row_major(device, tensor):
    array = transfer.upload(tensor, device)
    assert array.shape == tuple(tensor.shape)
    np.testing.assert_array_equal(np.asarray(array), tensor.numpy())


def test_later_writes_to_the_source_do_not_show(device):
    source = torch.zeros(1024)
    copy = transfer.to_device(source, device)
    source.fill_(7)
    assert torch.equal(transfer.to_host(copy), torch.zeros(1024))


def test_conjugate_and_negative_views_arrive_as_numbers(device):
    x = torch.tensor([1 + 2j, 3 - 4j])
    for lazy in (x.conj(), x.conj().imag):
        assert lazy.is_conj() or lazy.is_neg()
        copy = transfer.to_host(transfer.to_device(lazy, device))
        assert not copy.is_conj()
        assert not copy.is_neg()
        assert torch.equal(copy, lazy)


def test_autograd_does_not_know_the_copy(device):
    copy = transfer.to_device(torch.ones(3, requires_grad=True), device)
    assert not copy.requires_grad


def test_bits_arrive_as_they_are(device):
    bits = torch.tensor([0x7FC01234, -0x80000000, 1, 0x7F800000], dtype=torch.int32)
    copy = transfer.to_host(transfer.to_device(bits.view(torch.float32), device))
    assert torch.equal(copy.view(torch.int32), bits)


def test_the_value_keeps_the_users_line(device):
    copy = transfer.to_device(torch.ones(3), device)
    line = copy.handle.value.line
    assert (line.file, line.function) == (__file__, "test_the_value_keeps_the_users_line")


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), NotImplementedError, "dequantize"),
        (lambda: torch.eye(3).to_sparse_csr(), NotImplementedError, r"a sparse_csr tensor .*x\.to_dense\(\)"),
        (lambda: torch.ones(3, device="meta"), NotImplementedError, "Cannot copy out of meta tensor; no data!"),
        (lambda: torch.empty(3, dtype=torch.uint4), TypeError, "uint4 has no counterpart in XLA"),
        (lambda: torch.ones((1,) * 65), RuntimeError, "only tensors with up to 64 dims are supported"),
    ],
    ids=["quantized", "sparse", "meta", "dtype", "dimensions"],
)
@pytest.mark.filterwarnings(
    "ignore:Sparse CSR tensor support is in beta", "ignore:.*quantized tensor creation functions"
)
def test_what_a_device_cannot_hold_is_refused(device, make, kind, message):
    source = make()
    metrics.clear()
    with pytest.raises(kind, match=message):
        transfer.to_device(source, device)
    assert metrics.value("TransferToDevice") == 0


# ---- to the host


@pytest.mark.parametrize("name", TENSORS)
def test_a_copy_comes_back_with_its_strides(device, name):
    tensor = TENSORS[name]
    copy = transfer.to_device(tensor, device)
    back = transfer.to_host(copy)
    assert torch.equal(back, tensor)
    assert back.stride() == copy.spec.stride


def test_a_copy_without_elements_keeps_its_sizes(device):
    back = transfer.to_host(transfer.to_device(TENSORS["empty"], device))
    assert back.shape == (2, 0, 3)


def test_a_read_gives_memory_of_its_own(device):
    copy = transfer.to_device(torch.zeros(1024), device)
    transfer.to_host(copy).fill_(7)
    assert torch.equal(transfer.to_host(copy), torch.zeros(1024))


def test_a_read_executes_what_is_pending(device):
    x = unwrap(torch.arange(3.0).to("xla") * 2)
    assert x.handle.value.array is None
    assert transfer.to_host(x).tolist() == [0, 2, 4]
    assert x.handle.value.array is not None


def test_a_read_raises_what_went_wrong_in_its_program(device):
    index = torch.tensor([5]).to("xla")
    x = torch.arange(3.0).to("xla")[index]
    with pytest.raises(IndexError, match="index 5 is out of bounds"):
        transfer.to_host(unwrap(x))


def test_each_transfer_is_counted(device):
    metrics.clear()
    array = transfer.upload(torch.ones(3), device)
    assert (metrics.value("TransferToDevice"), metrics.value("TransferFromDevice")) == (1, 0)
    transfer.download(array)
    transfer.download(array)
    assert (metrics.value("TransferToDevice"), metrics.value("TransferFromDevice")) == (1, 2)
    _, measured = metrics.snapshot()
    sent, received = measured["OutboundData"], measured["InboundData"]
    assert (sent.total, sent.accumulator, sent.unit) == (1, 12, metrics.Unit.BYTES)
    assert (received.total, received.accumulator, received.unit) == (2, 24, metrics.Unit.BYTES)


# ---- strides


def test_elements_get_exactly_the_strides_of_a_spec(device, tensor):
    spec = TensorSpec.like(device, tensor)
    made = transfer.restride(tensor.contiguous(), spec)
    assert torch.equal(made, tensor)
    assert made.stride() == spec.stride


def test_a_contiguous_tensor_stays_itself(device):
    x = torch.ones(2, 3)
    assert transfer.restride(x, TensorSpec.of(device, torch.float32, (2, 3))) is x


def test_expanded_dimensions_take_no_memory(device):
    spec = TensorSpec.of(device, torch.float32, (1000, 3), (0, 1))
    made = transfer.restride(torch.ones(1, 3).expand(1000, 3).contiguous(), spec)
    assert made.untyped_storage().nbytes() == 3 * made.itemsize
