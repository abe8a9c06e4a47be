"""PyTorch/XLA's `test`: what its example scripts print with."""

from __future__ import annotations

from ...common.on_demand import submodules

__getattr__ = submodules(__name__, "test_utils")
