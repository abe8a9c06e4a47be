"""Products with few numbers between the matrices, against torch's own, in float64."""

from __future__ import annotations

import pytest
import torch

from lazy_runtime.debug import graphs
from lazy_runtime.ops.linalg import small_k_matmul
from tests import native_part

pytestmark = native_part.need_kernel(small_k_matmul._is_built)


def _aligned(rows: int, columns: int, offset: int = 0) -> torch.Tensor:
    memory = torch.full((rows * columns + 16,), float("nan"))
    start = -memory.data_ptr() // 4 % 16 + offset
    return memory[start:][: rows * columns].view(rows, columns)


@pytest.mark.parametrize("terms", [1, 3, 8, 40])
@pytest.mark.parametrize(("rows", "columns"), [(1, 16), (7, 48), (130, 1040), (300, 4112)])
def test_kernel(terms, rows, columns):
    x, y = torch.randn(terms, rows), torch.randn(terms, columns)
    found = torch.ops.lazy_runtime_kernels.small_k_matmul(x, y, out=_aligned(rows, columns))
    torch.testing.assert_close(found.double(), x.double().t() @ y.double(), rtol=1e-5, atol=1e-5)


def test_what_is_not_finite_stays_so():
    x, y = torch.ones(2, 3), torch.ones(2, 16)
    x[0, 1], y[1, 5] = float("nan"), float("inf")
    found = torch.ops.lazy_runtime_kernels.small_k_matmul(x, y, out=_aligned(3, 16))
    torch.testing.assert_close(found, x.t() @ y, equal_nan=True)


@pytest.mark.parametrize(
    ("x", "y", "out"),
    [
        ((2, 3), (2, 15), (3, 15)),
        ((2, 3), (3, 16), (3, 16)),
        ((2, 3), (2, 16), (2, 16)),
        ((65, 3), (65, 16), (3, 16)),
    ],
    ids=["columns", "terms", "result", "many terms"],
)
def test_kernel_refuses(x, y, out):
    with pytest.raises(RuntimeError, match="matrices of shapes"):
        torch.ops.lazy_runtime_kernels.small_k_matmul(torch.ones(x), torch.ones(y), out=_aligned(*out))


def test_kernel_refuses_results_that_are_not_aligned():
    with pytest.raises(RuntimeError, match="matrices of shapes"):
        torch.ops.lazy_runtime_kernels.small_k_matmul(torch.ones(2, 3), torch.ones(2, 16), out=_aligned(3, 16, 1))


@pytest.mark.parametrize(
    ("batch", "inputs", "outputs", "is_taken"),
    [(4, 1024, 1040, True), (8, 1024, 1024, True), (9, 1024, 1024, False), (4, 1030, 1030, False), (4, 64, 64, False)],
)
def test_a_layer_trains_as_on_the_cpu(batch, inputs, outputs, is_taken):
    layer = torch.nn.Linear(inputs, outputs)
    x = torch.randn(batch, inputs)

    def gradients(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
        ours = torch.nn.Linear(inputs, outputs).to(device, dtype)
        ours.load_state_dict(layer.state_dict())
        ours(x.to(device, dtype)).square().sum().backward()
        made = [ours.weight.grad, ours.bias.grad]
        if device == "xla":
            assert ("small_k_matmul" in graphs.stablehlo(made)) is is_taken
        return [each.cpu().double() for each in made]

    for found, expected in zip(gradients("xla", torch.float32), gradients("cpu", torch.float64), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
