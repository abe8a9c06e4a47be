"""PyTorch/XLA's `debug`: metrics, profiles, graphs in files."""

from __future__ import annotations

from ...common.on_demand import submodules

__getattr__ = submodules(
    __name__, "graph_saver", "metrics", "metrics_compare_utils", "metrics_saver", "model_comparator", "profiler"
)
