"""PyTorch/XLA's `distributed`: several processes, and loading data to a device."""

from __future__ import annotations

from ...common.on_demand import submodules

__getattr__ = submodules(
    __name__,
    "data_parallel",
    "fsdp",
    "parallel_loader",
    "spmd",
    "xla_backend",
    "xla_multiprocessing",
    "zero_redundancy_optimizer",
)
