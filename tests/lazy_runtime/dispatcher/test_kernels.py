"""Tensors come to the device, are read and leave it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import lazy_runtime

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_round_trip_keeps_every_bit(dtype):
    x = torch.arange(-6, 6).reshape(3, 4).to(dtype)
    there = x.to("xla")
    assert there.device == torch.device("xla:0")
    assert there.dtype == dtype
    assert torch.equal(there.cpu(), x)


def test_round_trip_keeps_64_bits_and_memory_format():
    # torch makes a permuted tensor contiguous on the way to xla (c10::Device::supports_as_strided)
    x = torch.arange(24).reshape(2, 3, 4).permute(2, 0, 1) + 2**40
    assert torch.equal(x.to("xla").cpu(), x)
    image = torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last)
    there = image.to("xla")
    assert there.stride() == image.stride()
    assert there.cpu().stride() == image.stride()


def test_a_copy_is_a_snapshot():
    x = torch.ones(1000)
    y = x.to("xla")
    x.fill_(7)
    assert torch.equal(y.cpu(), torch.ones(1000))


@pytest.mark.parametrize(
    "make",
    [
        lambda device: torch.tensor([[1, 2], [3, 4]], device=device),
        lambda device: torch.tensor(3.5, device=device, requires_grad=True),
        lambda device: torch.as_tensor([1.0, 2.0], device=device),
        lambda device: torch.zeros(2, 3, device=device),
        lambda device: torch.full((2,), 7, device=device),
        lambda device: torch.arange(1, 9, 2, device=device),
        lambda device: torch.arange(0, 1, 0.25, device=device),
        lambda device: torch.linspace(0, 1, 5, device=device),
        lambda device: torch.eye(3, device=device),
        lambda device: torch.ones(3, device=device).new_tensor([1, 2]),
        lambda device: torch.ones(3, device=device).new_full((2,), 5),
        lambda device: torch.tril_indices(3, 3, device=device),
        lambda device: torch.empty(0, 3, device=device),
    ],
)
def test_factories(make):
    ours, torchs = make("xla"), make("cpu")
    assert type(ours) is torch.Tensor
    assert ours.dtype == torchs.dtype
    assert ours.requires_grad == torchs.requires_grad
    assert torch.equal(ours.cpu(), torchs)


def test_random_tensor():
    x = torch.randn(4, 2, device="xla")
    assert x.shape == (4, 2)
    assert x.device.type == "xla"


def test_default_device():
    with torch.device("xla"):
        layer = torch.nn.Linear(3, 2)
        x = torch.ones(2, 3)
    assert layer.weight.device == x.device == lazy_runtime.device()
    assert layer(x).shape == (2, 2)


def test_printing():
    x = torch.arange(6.0).reshape(2, 3)
    assert repr(x.to("xla")) == "tensor([[0., 1., 2.],\n        [3., 4., 5.]], device='xla:0')"
    assert "requires_grad=True" in repr(x.to("xla").requires_grad_())
    assert repr(torch.nn.Parameter(x.to("xla"))).startswith("Parameter containing:\ntensor([[0.")
    assert repr(torch.tensor(3, device="xla")) == "tensor(3, device='xla:0')"
    assert "..." in repr(torch.zeros(100, 100, device="xla"))


def test_reading_values():
    x = torch.arange(6.0).reshape(2, 3).to("xla")
    assert x[1, 2].item() == 5.0
    assert isinstance(torch.tensor(2**40, device="xla").item(), int)
    assert bool((x > 4).any())
    assert int(x[0, 1]) == 1
    assert x.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert torch.equal(x, x.clone())
    assert not torch.equal(x, x + 1)
    assert torch.allclose(x, x + 1e-9)
    assert x in [x]


def test_numpy_is_refused_as_torch_does():
    x = torch.ones(2, device="xla")
    with pytest.raises(TypeError, match=r"can't convert xla:0 device type tensor to numpy. Use Tensor.cpu\(\)"):
        x.numpy()
    with pytest.raises(TypeError, match="copy the tensor to host memory first"):
        np.asarray(x)
    assert x.cpu().numpy().tolist() == [1.0, 1.0]


def test_copies_between_devices():
    host = torch.zeros(2, 3)
    there = torch.arange(6.0).reshape(2, 3).to("xla")
    host.copy_(there)
    assert torch.equal(host, there.cpu())
    there.copy_(torch.full((3,), 9))
    assert torch.equal(there.cpu(), torch.full((2, 3), 9.0))


@pytest.mark.parametrize(("shape", "stride"), [((3, 4), (4, 1)), ((3, 4), (1, 3)), ((2, 0), (1, 1)), ((), ())], ids=str)
def test_empty_strided(shape, stride):
    x = torch.empty_strided(shape, stride, device="xla")
    assert x.shape == shape
    assert x.stride() == stride
    assert x.storage_offset() == 0


def test_batch_norm_writes_its_statistics():
    torchs = torch.nn.BatchNorm1d(3)
    ours = torch.nn.BatchNorm1d(3).to("xla")
    x = torch.randn(8, 3)
    for _ in range(2):
        expected, got = torchs(x), ours(x.to("xla"))
    torch.testing.assert_close(got.cpu(), expected)
    for name, buffer in torchs.named_buffers():
        torch.testing.assert_close(ours.get_buffer(name).cpu(), buffer)


MADE_LIKE = {
    "empty_like": torch.empty_like,
    "full_like": lambda x, **options: torch.full_like(x, 2, **options),
    "new_empty": lambda x, **options: x.new_empty((2, 5), **options),
    "new_empty_strided": lambda x, **options: x.new_empty_strided((2, 5), (1, 2), **options),
    "new_full": lambda x, **options: x.new_full((2, 5), 3, **options),
    "new_ones": lambda x, **options: x.new_ones((2, 5), **options),
    "new_zeros": lambda x, **options: x.new_zeros((2, 5), **options),
    "ones_like": torch.ones_like,
    "rand_like": torch.rand_like,
    "randint_like": lambda x, **options: torch.randint_like(x, 1, 2, **options),
    "randn_like": torch.randn_like,
    "zeros_like": torch.zeros_like,
}


@pytest.mark.parametrize("make", MADE_LIKE.values(), ids=MADE_LIKE.keys())
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_made_like_a_tensor_on_another_device(make, mode):
    x = torch.randn(4, 3).t()
    on_xla = x.to("xla")
    with mode():
        for device in ("cpu", "meta", "xla"):
            found, expected = make(on_xla, device=device), make(x, device=device if device != "xla" else "cpu")
            assert found.device.type == device
            assert (found.shape, found.stride(), found.dtype) == (expected.shape, expected.stride(), expected.dtype)
            if device != "meta" and expected.unique().numel() == 1:
                assert found.cpu().tolist() == expected.tolist()
        assert make(on_xla, device="cpu", dtype=torch.float64).numpy().dtype == "float64"  # it has memory


def test_made_like_a_tensor_on_another_device_in_compiled_functions():
    def make(x):
        return torch.zeros_like(x, device="cpu"), x.new_ones(2, device="cpu"), x + 1

    compiled = torch.compile(make, backend="openxla")
    zeros, ones, following = compiled(torch.randn(2, 3, device="xla"))
    assert (zeros.device.type, ones.device.type, following.device.type) == ("cpu", "cpu", "xla")
    assert zeros.tolist() == torch.zeros(2, 3).tolist()
    assert ones.tolist() == [1, 1]
