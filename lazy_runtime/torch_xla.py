"""PyTorch/XLA's module of its top-level functions (`torch_xla.torch_xla`)."""

from __future__ import annotations

from ._api import compile, device, device_count, devices, launch, manual_seed, real_devices, step, sync

__all__ = ["compile", "device", "device_count", "devices", "launch", "manual_seed", "real_devices", "step", "sync"]
