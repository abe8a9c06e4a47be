"""Products of a few rows with a large matrix, against torch's own, in float64."""

from __future__ import annotations

import pytest
import torch

from lazy_runtime import debug
from lazy_runtime.debug import graphs
from lazy_runtime.ops.linalg import skinny_matmul
from tests import native_part

pytestmark = native_part.need_kernel(skinny_matmul._is_built)


@pytest.mark.parametrize("rows", range(1, 9))
@pytest.mark.parametrize(("in_", "out"), [(1, 1), (15, 33), (100, 16), (301, 517), (2048, 96)])
@pytest.mark.parametrize("turned", [True, False])
def test_kernel(rows, in_, out, turned):
    x, matrix = torch.randn(rows, in_), torch.randn(in_, out)
    given = matrix.t().contiguous() if turned else matrix
    result = torch.full((rows, out), float("nan"))
    found = torch.ops.lazy_runtime_kernels.skinny_matmul(x, given, turned, out=result)
    expected = x.double() @ matrix.double()
    assert (found.double() - expected).norm() <= 1e-6 * expected.norm()


@pytest.mark.parametrize("rows", [1, 3, 6])
@pytest.mark.parametrize("in_", [5, 96, 131])
@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("result_dtype", [torch.bfloat16, torch.float32])
def test_kernel_of_bfloat16(rows, in_, turned, result_dtype):
    x, matrix = torch.randn(rows, in_).bfloat16(), torch.randn(in_, 70).bfloat16()
    given = matrix.t().contiguous() if turned else matrix
    found = torch.empty(rows, 70, dtype=result_dtype)
    torch.ops.lazy_runtime_kernels.skinny_matmul(x, given, turned, out=found)
    expected = x.double() @ matrix.double()
    rounded = 2**-8 if result_dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(found.double(), expected, rtol=rounded, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 8])
@pytest.mark.parametrize("in_", [7, 64, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernel_of_int8(rows, in_, dtype):
    x, matrix = torch.randn(rows, in_).to(dtype), torch.randint(-128, 128, (33, in_), dtype=torch.int8)
    matrix[0, :2] = torch.tensor([-128, 127])
    found = torch.empty(rows, 33)
    torch.ops.lazy_runtime_kernels.skinny_matmul(x, matrix, True, out=found)
    expected = x.double() @ matrix.double().t()
    assert (found.double() - expected).norm() <= 1e-6 * expected.norm()


@pytest.mark.parametrize("turned", [True, False])
def test_what_is_not_finite_stays_so(turned):
    x, matrix = torch.ones(2, 40), torch.ones(40, 20)
    x[0, 39], matrix[38, 19] = float("nan"), float("inf")
    given = matrix.t().contiguous() if turned else matrix
    found = torch.ops.lazy_runtime_kernels.skinny_matmul(x, given, turned, out=torch.empty(2, 20))
    torch.testing.assert_close(found, x @ matrix, equal_nan=True)


@pytest.mark.parametrize(
    ("x", "matrix", "out"),
    [((9, 3), (3, 4), (9, 4)), ((2, 3), (4, 3), (2, 4)), ((2, 3), (3, 4), (2, 3)), ((2, 0), (0, 4), (2, 4))],
    ids=["rows", "matrix", "result", "empty"],
)
def test_kernel_refuses(x, matrix, out):
    with pytest.raises(RuntimeError, match="matrices of shapes"):
        torch.ops.lazy_runtime_kernels.skinny_matmul(torch.ones(x), torch.ones(matrix), False, out=torch.empty(out))


@pytest.mark.parametrize(
    ("batch", "inputs", "outputs", "is_taken"),
    [(2, 500, 700, True), (8, 700, 500, True), (1, 512, 512, True), (9, 512, 512, False), (4, 64, 64, False)],
)
def test_a_layer_trains_as_on_the_cpu(batch, inputs, outputs, is_taken):
    layer = torch.nn.Linear(inputs, outputs)
    x = torch.randn(batch, inputs)

    def train(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
        ours = torch.nn.Linear(inputs, outputs).to(device, dtype)
        ours.load_state_dict(layer.state_dict())
        given = x.to(device, dtype).requires_grad_()
        result = ours(given)
        (gradient,) = torch.autograd.grad(result.square().sum(), given)
        if device == "xla":
            calls = graphs.stablehlo([result, gradient]).count("lazy_runtime_kernels::skinny_matmul")
            assert calls == (2 if is_taken else 0)
        return [result.detach().cpu().double(), gradient.cpu().double()]

    for found, expected in zip(train("xla", torch.float32), train("cpu", torch.float64), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_of_bfloat16_rounds_once(bias):
    layer, x = torch.nn.Linear(512, 300, bias=bias).bfloat16(), torch.randn(3, 512).bfloat16()
    with torch.no_grad():
        expected = layer.double()(x.double())
        found = layer.bfloat16().to("xla")(x.to("xla"))
        assert graphs.stablehlo([found]).count("lazy_runtime_kernels::skinny_matmul") == 1
    torch.testing.assert_close(found.cpu().double(), expected, rtol=2**-8, atol=1e-5)
    assert [each.choice.kernel for each in debug.kernels() if each.choice.kind == "matrix product"][-1] == "skinny"


@pytest.mark.parametrize(("rows", "calls"), [(1, 1), (8, 1), (64, 0)])
def test_quantised_weights_are_converted_by_the_kernel(rows, calls):
    weight, x = torch.randint(-128, 128, (300, 512), dtype=torch.int8), torch.randn(rows, 512)
    found = x.to("xla") @ weight.to("xla").t().to(torch.float32)
    text = graphs.stablehlo([found])
    assert text.count("lazy_runtime_kernels::skinny_matmul") == calls
    assert ("convert" in text) == (calls == 0)
    torch.testing.assert_close(found.cpu().double(), x.double() @ weight.double().t(), rtol=1e-5, atol=1e-2)
