"""PyTorch/XLA's `core`: the module that its scripts import as `xm`."""

from __future__ import annotations

from ...common.on_demand import submodules

__getattr__ = submodules(__name__, "functions", "xla_builder", "xla_env_vars", "xla_model", "xla_op_registry")
