"""Adam with its counts of steps on the device, against eager PyTorch on the CPU with counts on the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lazy_runtime.recording import adam
from lazy_runtime.torch_xla.amp import syncfree


def test_this_torch_has_what_is_exchanged() -> None:
    assert adam.is_possible()


def _train(kind: Any, device: str, rates: Any, dtype: torch.dtype = torch.float64, **options: Any) -> torch.Tensor:
    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(4, 3, dtype=dtype).to(device))
    optimizer = kind([parameter], **options)
    for rate in rates:
        optimizer.param_groups[0]["lr"] = rate
        gradient = torch.randn(4, 3, dtype=dtype)
        gradient[1] = 0
        parameter.grad = gradient.to(device)
        optimizer.step()
    return parameter.detach().cpu()


@pytest.mark.parametrize("rates", [(0.0, 0.0, 0.1), (0.1, 0.01, 0.1)])
@pytest.mark.parametrize(
    "options", [{}, {"amsgrad": True, "maximize": True}, {"weight_decay": 0.1, "eps": 1e-3, "betas": (0.5, 0.6)}]
)
@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_steps_are_eagers(name: str, options: dict[str, Any], rates: Any) -> None:
    torch.set_default_dtype(torch.float64)  # of the counts
    try:
        expected = _train(getattr(torch.optim, name), "cpu", rates, **options)
        for kind in (getattr(torch.optim, name), getattr(syncfree, name)):
            found = _train(kind, "xla", rates, capturable=True, **options)
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    finally:
        torch.set_default_dtype(torch.float32)


def test_complex_parameters_and_rates_that_are_tensors() -> None:
    expected = _train(torch.optim.Adam, "cpu", (0.0, 0.1), torch.complex64)
    rates = [torch.tensor(rate, device="xla") for rate in (0.0, 0.1)]
    found = _train(torch.optim.Adam, "xla", rates, torch.complex64, capturable=True)
    torch.testing.assert_close(found, expected)


def test_counts_on_the_host_are_refused_as_by_torch() -> None:
    parameter = torch.nn.Parameter(torch.ones(2, device="xla"))
    optimizer = torch.optim.Adam([parameter])
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.param_groups[0]["capturable"] = True
    with pytest.raises(AssertionError, match="supported devices"):
        optimizer.step()
