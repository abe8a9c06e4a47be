"""Graphs in a file."""

from __future__ import annotations

from ...debug.graph_saver import save_tensors_graph

__all__ = ["save_tensors_graph"]
