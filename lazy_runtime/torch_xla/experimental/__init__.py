"""Eager mode: every operator runs when it is called, instead of waiting for `lazy_runtime.sync()`."""

from ...common.on_demand import submodules
from .eager import eager_mode, eager_mode_context, is_eager_mode

__all__ = ["eager_mode", "eager_mode_context", "is_eager_mode"]

__getattr__ = submodules(__name__, "spmd_fully_sharded_data_parallel")
