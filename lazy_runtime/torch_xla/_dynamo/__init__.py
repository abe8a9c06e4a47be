"""PyTorch/XLA's `_dynamo`. `torch.compile(backend="openxla")` needs nothing of it."""

from __future__ import annotations

from ...common.on_demand import submodules

__getattr__ = submodules(__name__, "config", "dynamo_backend2", "dynamo_bridge")
