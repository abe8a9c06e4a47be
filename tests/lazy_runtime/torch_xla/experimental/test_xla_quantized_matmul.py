"""Linear layers with weights of 8 bits, against the products of what the weights stand for."""

from __future__ import annotations

import pytest
import torch

from lazy_runtime.torch_xla import _XLAC
from lazy_runtime.torch_xla.experimental.custom_kernel import quantized_matmul_int8, quantized_matmul_int8_xla
from lazy_runtime.torch_xla.experimental.xla_quantized_matmul import (
    XlaQuantizedLinear,
    quantized_matmul,
    quantized_matmul_xla,
)

WEIGHT = torch.tensor([[1, -2, 3, 127], [-128, 5, 6, 0]], dtype=torch.int8)
SCALE, ZERO = torch.tensor([0.5, 0.25]), torch.tensor([1.5, -2.0])


@pytest.mark.parametrize("device", ["cpu", "xla"])
@pytest.mark.parametrize("zero", [None, ZERO])
def test_a_scale_for_each_output(device, zero):
    x = torch.randn(3, 2, 4)
    whole = WEIGHT.float() * SCALE[:, None] - (0 if zero is None else zero[:, None])
    given = [None if each is None else each.to(device) for each in (x, WEIGHT, SCALE, zero)]
    for function in (quantized_matmul, quantized_matmul_xla, torch.ops.xla.quantized_matmul):
        torch.testing.assert_close(function(*given).cpu(), x @ whole.T)
    layer = XlaQuantizedLinear(4, 2, is_symmetric=zero is None)
    layer.load_quantized_weight(WEIGHT, SCALE, zero)
    torch.testing.assert_close(layer.to(device)(given[0]).cpu(), x @ whole.T)


@pytest.mark.parametrize("device", ["cpu", "xla"])
@pytest.mark.parametrize("is_symmetric", [True, False])
def test_blocks(device, is_symmetric):
    weight = torch.randint(-8, 8, (2, 3, 5), dtype=torch.int8)
    scale, zero, x = torch.rand(2, 5), None if is_symmetric else torch.rand(2, 5), torch.randn(4, 6)
    whole = (weight * scale[:, None] - (0 if zero is None else zero[:, None])).reshape(6, 5)
    layer = XlaQuantizedLinear(6, 5, is_symmetric, block_size=3, int4_weight=True)
    layer.load_quantized_weight(weight, scale, zero)
    torch.testing.assert_close(layer.to(device)(x.to(device)).cpu(), x @ whole)


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_integer_products(device):
    x = torch.randn(3, 4)
    x[1] = 0
    rounded = torch.round(x / (x.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-9)).clamp(-127, 127)
    expected = (rounded * x.abs().amax(-1, keepdim=True) / 127) @ (WEIGHT.float() * SCALE[:, None]).T
    given = [each.to(device) for each in (x, WEIGHT, SCALE)]
    found = quantized_matmul_int8(*given, quantize_activation=True)
    torch.testing.assert_close(found.cpu(), expected)
    assert torch.equal(quantized_matmul_int8_xla(*given, quantize_activation=True).cpu(), found.cpu())
    assert torch.equal(torch.ops.xla.quantized_matmul_int8(*given, None, None, True).cpu(), found.cpu())
    if device == "xla":
        lines = _XLAC._get_xla_tensors_hlo([quantized_matmul_int8(*given, quantize_activation=True)]).splitlines()
        assert any("s32[" in line and " dot(" in line for line in lines)


def test_refusals():
    x = torch.ones(1, 4)
    for arguments, match in (
        ((x, WEIGHT.int(), SCALE), "expected int8, got torch.int32"),
        ((x, WEIGHT[:, :3], SCALE), r"the weight: expected shape \[2, 4\], got \[2, 3\]"),
        ((x, WEIGHT, SCALE[:1]), r"the scale: expected shape \[2\]"),
        ((x, WEIGHT, SCALE, ZERO[:1]), r"the zero point: expected shape \[2\]"),
        ((x, WEIGHT, SCALE, None, 3), "3 does not divide 4 inputs"),
    ):
        with pytest.raises(ValueError, match=match):
            quantized_matmul(*arguments)
    with pytest.raises(NotImplementedError, match="where there are no blocks alone"):
        quantized_matmul(x, torch.zeros(2, 2, 3, dtype=torch.int8), torch.ones(2, 3), None, 2, False, True)
    with pytest.raises(NotImplementedError, match="no zero points and no blocks"):
        quantized_matmul_int8(x, WEIGHT, SCALE, ZERO)
    with pytest.raises(ValueError, match="expected none, the layer is symmetric"):
        XlaQuantizedLinear(4, 2).load_quantized_weight(WEIGHT, SCALE, ZERO)
    with pytest.raises(ValueError, match="3 does not divide 4 inputs"):
        XlaQuantizedLinear(4, 2, block_size=3)
