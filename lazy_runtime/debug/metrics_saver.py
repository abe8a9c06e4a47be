"""`XLA_METRICS_FILE`: the report, appended at each step."""

from __future__ import annotations

import itertools
import sys

from ..common import environment, metrics, notices
from . import formats

_steps = itertools.count()


def save_metrics(metrics_file: str | None = None) -> None:
    """Appends the metrics report to a file.

    Args:
        metrics_file: `XLA_METRICS_FILE` by default; without it nothing happens. `STDERR` and `STDOUT` are no files.

    Raises:
        OSError: the file that was given cannot be written; of that of the environment a warning tells, once.
    """
    given = metrics_file
    if metrics_file is None:
        metrics_file = environment.value("XLA_METRICS_FILE")
    if metrics_file is None:
        return
    text = f"[MetricsData; step={next(_steps)}]\n{formats.classic(*metrics.snapshot())}\n"
    if metrics_file in ("STDERR", "STDOUT"):
        (sys.stderr if metrics_file == "STDERR" else sys.stdout).write(text)
    elif given is None:
        notices.append(metrics_file, text, "XLA_METRICS_FILE")
    else:
        with open(metrics_file, "a", encoding="utf-8") as file:
            file.write(text)
