"""Decompositions that make tensors of their own, in compiled functions of plain tensors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

FUNCTIONS = {
    "diag": lambda x: torch.diag(x[0]),
    "diagflat": torch.diagflat,
    "diag_embed": torch.diag_embed,
    "block_diag": lambda x: torch.block_diag(x, x[:1]),
    "mvlgamma": lambda x: torch.mvlgamma(x.abs() + 3, 2),
    "affine_grid": lambda x: F.affine_grid(x[:2, :3].reshape(1, 2, 3), (1, 1, 4, 5), align_corners=False),
    "reflect": lambda x: F.pad(x.view(1, 1, 4, 4), (1, 2, 2, 1), mode="reflect"),
    "stft": lambda x: torch.view_as_real(torch.stft(x.view(-1), 8, window=torch.ones(8), return_complex=True)),
    "logdet": lambda x: torch.logdet(x @ x.mT + torch.eye(4)),
}
if hasattr(F, "linear_cross_entropy"):  # from torch 2.13 on

    def _chunked(x: torch.Tensor) -> torch.Tensor:
        """A body in Python that writes to what it has made and to what it has copied (`torch_nn::`)."""
        from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions

        options = LinearCrossEntropyOptions(batch_chunk_size=2)
        return F.linear_cross_entropy(x, x * 2, torch.tensor([1, 3, 0, 2]), options=options)

    FUNCTIONS["linear_cross_entropy"] = _chunked


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_forward_and_backward_are_eager_torch_s(function):
    x = torch.linspace(-1, 2, 16).view(4, 4).cos().requires_grad_()
    torch._dynamo.reset()
    results = []
    for run in (function, torch.compile(function, backend="openxla")):
        y = run(x)
        (gradient,) = torch.autograd.grad((y * torch.arange(1.0, y.numel() + 1).view(y.shape)).sum(), x)
        results.append((y, gradient))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)
