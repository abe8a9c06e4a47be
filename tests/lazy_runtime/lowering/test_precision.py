"""The level of float32 products: torch's setting, and what a lowering gets of it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from lazy_runtime.ir import lowering_context
from lazy_runtime.lowering import precision

FLOAT32 = np.dtype(np.float32)


@pytest.fixture(autouse=True)
def restored():
    """Torch's settings, after the test."""
    library = torch.backends.cuda.matmul
    before = library.fp32_precision
    yield
    library.fp32_precision = before
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("level", ["highest", "high", "medium"])
def test_the_level_is_torchs(level):
    torch.set_float32_matmul_precision(level)
    assert precision.level() == level


def test_a_setting_for_another_library_leaves_xla_the_highest():
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    with pytest.raises(RuntimeError, match="mix of the legacy and new APIs"):
        torch.get_float32_matmul_precision()
    assert precision.level() == "highest"
    assert precision.get_mat_mul_precision() == "highest"


def test_a_name_that_is_refused_changes_nothing():
    precision.set_mat_mul_precision("high")
    with pytest.raises(ValueError, match=r"must be 'highest', 'high' or 'default', got 'fast'$"):
        precision.set_mat_mul_precision("fast")  # pyright: ignore[reportArgumentType]
    assert precision.level() == "high"


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("highest", jax.lax.Precision.HIGHEST),
        ("high", jax.lax.Precision.HIGH),
        ("medium", jax.lax.Precision.DEFAULT),
    ],
)
def test_a_call_is_lowered_with_the_level_that_it_was_recorded_under(level, expected):
    torch.set_float32_matmul_precision("high")  # which is of no account any more
    with lowering_context.changed(precision=level):
        assert precision.of(FLOAT32) is expected


def test_outside_of_a_call_products_are_as_precise_as_can_be():
    torch.set_float32_matmul_precision("medium")
    assert precision.of(FLOAT32) is jax.lax.Precision.HIGHEST


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.bfloat16, jnp.float16, jnp.complex128, jnp.int32])
def test_products_of_other_dtypes_have_no_level(dtype):
    with lowering_context.changed(precision="medium"):
        assert precision.of(np.dtype(dtype)) is None
        assert precision.of(np.dtype(jnp.complex64)) is jax.lax.Precision.DEFAULT
