"""PyTorch/XLA's `amp`: mixed precision on xla devices."""

from __future__ import annotations

from ...common.on_demand import submodules
from .autocast_mode import autocast, custom_bwd, custom_fwd
from .grad_scaler import GradScaler

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]

__getattr__ = submodules(__name__, "syncfree")
