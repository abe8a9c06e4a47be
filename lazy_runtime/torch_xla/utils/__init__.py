"""PyTorch/XLA's `utils`."""

from __future__ import annotations

from ...common.on_demand import submodules

__getattr__ = submodules(__name__, "checkpoint", "dlpack", "keyd_queue", "serialization", "utils")
