"""What happens at the end of each step: `XLA_METRICS_FILE`, `XLA_EMIT_STEPLOG`."""

from __future__ import annotations

import itertools
import os
import sys

from .. import config, environment
from . import metrics

_steps = itertools.count()


def save_metrics(metrics_file: str | None = None) -> None:
    """Appends the metrics report to a file.

    Args:
        metrics_file: `XLA_METRICS_FILE` by default; without it nothing happens.
    """
    if metrics_file is None:
        if "XLA_METRICS_FILE" not in os.environ:  # asked at every step
            return
        metrics_file = environment.value("XLA_METRICS_FILE")
    if metrics_file is not None:
        with open(metrics_file, "a", encoding="utf-8") as file:
            file.write(f"[MetricsData; step={next(_steps)}]\n{metrics.metrics_report()}\n")


def end_step() -> None:
    """Called by `sync`."""
    if config.step_log():
        print("torch_xla.core.xla_model::mark_step", file=sys.stderr, flush=True)
    save_metrics()
