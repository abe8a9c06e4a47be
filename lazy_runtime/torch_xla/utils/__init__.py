"""PyTorch/XLA's `utils`."""

from __future__ import annotations

from ...common.on_demand import submodules

__getattr__ = submodules(
    __name__,
    "buffer_donor_context",
    "checkpoint",
    "checkpoint_tagger",
    "closures",
    "dlpack",
    "keyd_queue",
    "serialization",
    "utils",
)
