"""PyTorch/XLA's `backends`: the precision of float32 matrix products, which is torch's setting (`precision.py`)."""

from __future__ import annotations

from ...lowering.precision import get_mat_mul_precision, set_mat_mul_precision

__all__ = ["get_mat_mul_precision", "set_mat_mul_precision"]
