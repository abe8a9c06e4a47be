"""What tensors hold that nobody has given a value."""

from __future__ import annotations

import pytest
import torch
from torch.utils import deterministic

FACTORIES = {
    "empty": lambda x: torch.empty(3, dtype=x.dtype, device=x.device),
    "channels_last": lambda x: torch.empty(
        1, 2, 2, 2, dtype=x.dtype, device=x.device, memory_format=torch.channels_last
    ),
    "empty_like": torch.empty_like,
    "empty_strided": lambda x: torch.empty_strided((2, 2), (1, 4), dtype=x.dtype, device=x.device),
    "empty_permuted": lambda x: torch.empty_permuted((2, 3), (1, 0), dtype=x.dtype, device=x.device),
    "new_empty": lambda x: x.new_empty(2),
    "new_empty_strided": lambda x: x.new_empty_strided((2, 2), (2, 1)),
    "resize_": lambda x: x.clone().resize_(5),
}
DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float64,
    torch.complex64,
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
]


@pytest.fixture
def deterministic_algorithms():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def compiled(factory):
    torch._dynamo.reset()
    return torch.compile(factory, backend="openxla")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)
def test_under_deterministic_algorithms_it_is_what_the_cpu_has(factory, dtype, deterministic_algorithms):
    x = torch.ones(2, dtype=dtype)
    expected, found = factory(x), factory(x.to("xla"))
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found.cpu(), expected, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("device", ["cpu", "xla"])
@pytest.mark.parametrize("name", ["empty", "empty_like", "new_empty"])
def test_in_compiled_functions(name, device, deterministic_algorithms):
    x = torch.ones(2)
    found = compiled(FACTORIES[name])(x.to(device))
    torch.testing.assert_close(found.cpu(), FACTORIES[name](x), equal_nan=True)


@pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)
def test_else_it_is_zeros(factory, monkeypatch):
    x = torch.zeros(2, device="xla")
    assert factory(x).count_nonzero() == 0
    torch.use_deterministic_algorithms(True)
    try:
        monkeypatch.setattr(deterministic, "fill_uninitialized_memory", False)
        assert factory(x).count_nonzero() == 0
    finally:
        torch.use_deterministic_algorithms(False)
