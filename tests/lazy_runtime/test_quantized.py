"""Quantized tensors on xla, which do not exist: errors that say so, where, and what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

QUANTIZING: list[Callable[[torch.Tensor], object]] = [
    lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),  # the line
    lambda x: torch.quantize_per_tensor(x, torch.tensor(0.1), torch.tensor(0), torch.qint8),  # the line
    lambda x: torch.quantize_per_tensor([x], torch.ones(1), torch.zeros(1), torch.qint8),  # the line
    lambda x: torch.quantize_per_channel(x, torch.ones(4), torch.zeros(4), 0, torch.qint8),  # the line
    lambda x: torch.quantize_per_tensor_dynamic(x, torch.qint8, False),  # the line
]


# torch deprecates its quantized tensors
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("quantize", QUANTIZING)
def test_what_quantizes(quantize: Callable[[torch.Tensor], object], eager: bool):
    from lazy_runtime.experimental import eager_mode

    eager_mode(eager)
    with pytest.raises(NotImplementedError, match="cannot be on an xla device: quantize on the CPU") as raised:
        quantize(torch.ones(4, 8, device="xla"))
    assert f'File "{__file__}", line {quantize.__code__.co_firstlineno}' in str(raised.value)


@pytest.mark.filterwarnings("ignore")
def test_what_makes_quantized_tensors():
    torch.ones(1, device="xla")
    with pytest.raises(NotImplementedError, match="cannot be on an xla device"):
        torch._empty_affine_quantized([2], scale=0.1, zero_point=0, dtype=torch.quint8, device="xla")


def test_what_stands_for_them():
    from torch.ao.quantization.fx import _decomposed  # noqa: F401  defines the operators

    x = torch.randn(4, 8)
    decomposed = torch.ops.quantized_decomposed.quantize_per_tensor
    for f in (
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127),
        lambda x: decomposed(x, 0.1, 0, -128, 127, torch.int8),
    ):
        torch.testing.assert_close(f(x.to("xla")).cpu(), f(x))
