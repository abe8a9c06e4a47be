"""PyTorch/XLA's `distributed`: loading data to a device."""

from __future__ import annotations

from .._on_demand import submodules

__getattr__ = submodules(__name__, "data_parallel", "parallel_loader")
