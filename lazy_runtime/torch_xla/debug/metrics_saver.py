"""The report in a file."""

from __future__ import annotations

from ...debug.metrics_saver import save_metrics

__all__ = ["save_metrics"]
