"""Operators that check values and raise, when the program has run (`checks.py`)."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import torch

from ...lowering import checks
from ...lowering.argmax import argmax
from ..registry import op

aten = torch.ops.aten


@op("aten::_linalg_check_errors", fallible=True)
def _linalg_check_errors(info, api_name, *, is_matrix):
    flat = info.reshape(-1).astype(jnp.int64)
    if flat.size:
        first = argmax(flat != 0).astype(jnp.int64)
        checks.require(~flat.any(), _linalg_error(api_name, is_matrix), (first << 32) | (flat[first] & 0xFFFFFFFF))
    return ()


def _linalg_error(api_name: str, is_matrix: bool) -> Callable[[int], Exception]:
    """Torch's own error for an info: the number of the matrix in the upper half, LAPACK's code in the lower one."""

    def error(value: int) -> Exception:
        matrix, code = value >> 32, value & 0xFFFFFFFF
        infos = torch.zeros(() if is_matrix else matrix + 1, dtype=torch.int32, device="cpu")
        infos.view(-1)[-1] = code - (1 << 32) if code >= 1 << 31 else code
        try:
            aten._linalg_check_errors.default(infos, api_name, is_matrix=is_matrix)
        except Exception as found:
            return found
        return RuntimeError(f"{api_name}: error code {code}")

    return error


@op("aten::_assert_async", "aten::_assert_async.msg", fallible=True)
def _assert_async(x, message="Expected Tensor with single nonzero value, but got zero"):
    checks.require((x != 0).all(), lambda _: RuntimeError(message))
    return ()


@op("aten::_functional_assert_async.msg", fallible=True)
def _functional_assert_async(x, message, token):
    _assert_async(x, message)
    return token
