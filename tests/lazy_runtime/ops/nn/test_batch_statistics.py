"""Batch normalization's sums in a kernel of ours, against torch in float64."""

from __future__ import annotations

import pytest
import torch

from lazy_runtime.debug import graphs
from lazy_runtime.ops.nn import batch_statistics
from tests import native_part

aten = torch.ops.aten

native_part.need_bridge()

#: Rows and channels: of one block and of many, of channels that no vector and no thread divides.
SIZES = [(1, 3), (7, 5), (196, 1280), (784, 576), (513, 37), (12544, 24), (1000, 1), (40000, 64)]


def kernels():
    return torch.ops.lazy_runtime_kernels


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_moments(size):
    x = torch.randn(size) * 3 + 50  # far from 0: a sum of squares would cancel
    mean, variance = kernels().batch_statistics(x)
    wanted = x.double()
    torch.testing.assert_close(mean.double(), wanted.mean(0), rtol=1e-6, atol=0)
    torch.testing.assert_close(variance.double(), wanted.var(0, unbiased=False), rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_gradients(size):
    x, grad = torch.randn(size) * 3 + 50, torch.randn(size)
    mean, _ = kernels().batch_statistics(x)
    total, product = kernels().batch_gradients(grad, x, mean)
    wanted, away = grad.double(), x.double() - mean.double()
    scale = size[0] ** 0.5
    torch.testing.assert_close(total.double(), wanted.sum(0), rtol=0, atol=2e-6 * scale)
    torch.testing.assert_close(product.double(), (wanted * away).sum(0), rtol=0, atol=6e-6 * scale)


def test_the_number_of_threads_changes_nothing():
    x = torch.randn(5000, 48)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(kernels().batch_statistics(x))
    finally:
        torch.set_num_threads(before)
    for mean, variance in found[1:]:
        assert torch.equal(mean, found[0][0])
        assert torch.equal(variance, found[0][1])


def test_what_is_not_finite_stays_in_its_channel():
    x = torch.randn(64, 4)
    x[3, 1], x[5, 2] = float("nan"), float("inf")
    mean, variance = kernels().batch_statistics(x)
    assert mean.isnan().tolist() == [False, True, False, False]
    assert mean[2] == float("inf")
    assert variance.isnan().tolist() == [False, True, True, False]


@pytest.mark.parametrize(
    ("images", "grad"),
    [(torch.zeros(3), torch.zeros(3)), (torch.zeros(3, 2).double(),) * 2, (torch.zeros(4, 2).t(),) * 2],
    ids=["dimensions", "dtype", "strides"],
)
def test_what_it_does_not_take_is_refused(images, grad):
    with pytest.raises(RuntimeError, match="rows of channels"):
        kernels().batch_statistics(images)
    with pytest.raises(RuntimeError, match="rows of channels"):
        kernels().batch_gradients(grad, images, torch.zeros(2))


def test_gradients_of_another_shape_are_refused():
    with pytest.raises(RuntimeError, match="gradients of shape"):
        kernels().batch_gradients(torch.zeros(3, 2), torch.zeros(4, 2), torch.zeros(2))


@pytest.mark.parametrize("shape", [(4, 32, 16, 16), (4, 32, 256), (4, 32, 4, 8, 8), (1024, 32)], ids=str)
@pytest.mark.parametrize("affine", [True, False])
def test_a_module_trains_as_on_the_cpu(shape, affine):
    """Large enough for the kernel: result, running statistics and gradients."""
    assert torch.Size(shape).numel() >= batch_statistics.LEAST
    kind = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d, 5: torch.nn.BatchNorm3d}
    x, grad = torch.randn(shape) * 2 + 1, torch.randn(shape)

    def train(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
        module = kind[len(shape)](32, affine=affine).to(device, dtype)
        image = x.to(device, dtype).requires_grad_()
        result = module(image)
        result.backward(grad.to(device, dtype))
        found = [result, image.grad, *module.buffers(), *(each.grad for each in module.parameters())]
        return [each.detach().cpu().to(torch.float64) for each in found if each is not None]

    for ours, wanted in zip(train("xla", torch.float32), train("cpu", torch.float64), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=2e-5)


def test_the_program_calls_the_kernel():
    x = torch.randn(4, 32, 16, 16, device="xla").requires_grad_()
    module = torch.nn.BatchNorm2d(32).to("xla")
    module(x).sum().backward()
    text = graphs.stablehlo([x.grad])
    assert "batch_statistics" in text
    assert "batch_gradients" in text
