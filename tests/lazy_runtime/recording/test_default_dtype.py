"""`torch.set_default_dtype` may change between operators that are alike, and before what is recorded is executed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch

import lazy_runtime

#: Two of them twice: what was recorded under another one before is known.
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float32, torch.float64]

OPERATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "integers": lambda x: x.sqrt(),
    "true division": lambda x: x / 3,
    "a number": lambda x: x * 1.1,
    "zeros": lambda x: torch.zeros(3, device=x.device),
    "full": lambda x: torch.full((2,), 0.1, device=x.device),
    "linspace": lambda x: torch.linspace(0, 1, 7, device=x.device),
    "arange": lambda x: torch.arange(0, 1, 0.3, device=x.device),
    "where": lambda x: torch.where(x > 1, 0.1, 0.7),
    "comparison": lambda x: x > 2.000000001,
    "a float tensor": lambda x: x.float() * 1.1,
    "mean": lambda x: torch.special.erf(x).mean(),
    "views": lambda x: torch.ones(2, 3, device=x.device).t() * 0.1,
}


@contextlib.contextmanager
def default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def numbers(device: str) -> torch.Tensor:
    return torch.tensor([1, 2, 3], device=device)


def check(
    operation: Callable[[torch.Tensor], torch.Tensor],
    compute: Callable[[], torch.Tensor],
    dtypes: Sequence[torch.dtype] = DTYPES,
) -> None:
    for dtype in dtypes:
        with default(dtype):
            found, wanted = compute(), operation(numbers("cpu"))
        assert found.dtype == wanted.dtype
        torch.testing.assert_close(found.cpu(), wanted)


@pytest.mark.parametrize("name", OPERATIONS)
def test_lazy(name):
    check(OPERATIONS[name], lambda: OPERATIONS[name](numbers("xla")))


def test_a_complex_number():
    def operation(x: torch.Tensor) -> torch.Tensor:
        return x * (0.3 + 0.1j)

    # of float16 comes complex32, which xla has not
    check(operation, lambda: operation(numbers("xla")), [dtype for dtype in DTYPES if dtype != torch.float16])


@pytest.mark.parametrize("name", ["integers", "a number", "zeros"])
def test_eager(name):
    lazy_runtime.experimental.eager_mode(True)
    try:
        check(OPERATIONS[name], lambda: OPERATIONS[name](numbers("xla")))
    finally:
        lazy_runtime.experimental.eager_mode(False)


@pytest.mark.parametrize("device", ["xla", "cpu"])
@pytest.mark.parametrize("name", ["integers", "a number", "zeros"])
def test_compiled(name, device):
    compiled = torch.compile(OPERATIONS[name], backend="openxla")
    check(OPERATIONS[name], lambda: compiled(numbers(device)))


def test_a_model_made_in_16_bits():
    """As libraries of language models make them."""
    for _ in range(2):
        with default(torch.bfloat16):
            made = torch.nn.Linear(4, 3, device="xla")
            scale = torch.ones(3, device="xla") / torch.arange(1, 4, device="xla")
        assert (made.weight.dtype, scale.dtype) == (torch.bfloat16, torch.bfloat16)
        made = torch.nn.Linear(4, 3, device="xla")
        scale = torch.ones(3, device="xla") / torch.arange(1, 4, device="xla")
        assert (made.weight.dtype, scale.dtype) == (torch.float32, torch.float32)
