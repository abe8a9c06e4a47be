"""Fourier transforms: odd and even lengths, permuted operands, strides, inputs that are not Hermitian."""

from __future__ import annotations

import pytest
import torch

TRANSFORMS = ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft", "fftn", "ifftn", "rfftn", "irfftn"]


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("shape", [(4,), (5,), (3, 4, 5), (2, 3, 2, 5)])
@pytest.mark.parametrize("permuted", [False, True])
def test_transform(name, shape, permuted):
    real = name in ("rfft", "ihfft", "rfftn")
    x = torch.randn(shape, dtype=torch.float64 if real else torch.complex128)
    transform = getattr(torch.fft, name)

    def function(x):
        return transform(x.permute(*reversed(range(x.ndim))) if permuted else x, norm="ortho")

    expected, result = function(x), function(x.to("xla"))
    torch.testing.assert_close(result.cpu().resolve_conj(), expected.resolve_conj(), rtol=1e-11, atol=1e-11)
    assert result.stride() == expected.stride()
