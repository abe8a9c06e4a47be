"""`import torch_xla.debug.metrics as met`: what was counted and measured, with PyTorch/XLA's functions and formats.

Times are in nanoseconds. `prometheus_text` and `json_report` give the same for machines.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...common import metrics as store
from ...debug import formats

__all__ = [
    "clear_all",
    "clear_counters",
    "clear_metrics",
    "counter_names",
    "counter_value",
    "executed_fallback_ops",
    "json_report",
    "metric_data",
    "metric_names",
    "metrics_report",
    "prometheus_text",
    "short_metrics_report",
]

_SHORT_COUNTERS = ("CachedCompile", "MarkStep", "DynamoSyncInputExecuteTime")
_SHORT_METRICS = (
    "CompileTime",
    "ExecuteTime",
    "ExecuteReplicatedTime",
    "TransferToDeviceTime",
    "TransferFromDeviceTime",
)


def counter_names() -> list[str]:
    """Names of all counters that are not 0."""
    return list(store.snapshot()[0])


def counter_value(name: str) -> int | None:
    """The value of a counter; None if nothing was counted under that name."""
    return store.snapshot()[0].get(name)


def metric_names() -> list[str]:
    """Names of all metrics that have samples."""
    return list(store.snapshot()[1])


def metric_data(name: str) -> tuple[int, float, tuple[tuple[float, float], ...]] | None:
    """The samples of a metric; None if there are none under that name.

    Returns:
        How many samples there were, their sum, and the latest of them as (seconds since the epoch, value).
    """
    metric = store.snapshot()[1].get(name)
    return None if metric is None else (metric.total, metric.accumulator, tuple(metric.samples))


def metrics_report(counter_names: Sequence[str] | None = None, metric_names: Sequence[str] | None = None) -> str:
    """Everything that was counted and measured, as text.

    Args:
        counter_names, metric_names: the only ones to report. Where only one of the two is given, none of the other kind
            is reported. Operators that had no lowering (`aten::...`) always are.
    """
    counters, measured = store.snapshot()
    if counter_names is not None or metric_names is not None:
        wanted = {*(counter_names or ()), *(metric_names or ())}
        measured = {name: metric for name, metric in measured.items() if name in wanted}
        counters = {name: n for name, n in counters.items() if name in wanted or name.startswith("aten::")}
    return formats.classic(counters, measured)


def short_metrics_report(counter_names: Sequence[str] | None = None, metric_names: Sequence[str] | None = None) -> str:
    """`metrics_report` of a few: compiles, steps, executions and transfers, unless others are named."""
    return metrics_report(counter_names or _SHORT_COUNTERS, metric_names or _SHORT_METRICS)


def clear_all() -> None:
    """Forgets every counter and every metric."""
    store.clear()


def clear_counters() -> None:
    """Forgets every counter."""
    store.clear_counters()


def clear_metrics() -> None:
    """Forgets every metric."""
    store.clear_metrics()


def executed_fallback_ops() -> list[str]:
    """Names of the operators without a lowering that were called, as `aten::nonzero`."""
    return [name for name in store.snapshot()[0] if name.startswith("aten::")]


def prometheus_text() -> str:
    """Everything in Prometheus' text format 0.0.4: counters, and metrics as summaries, times in seconds."""
    return formats.prometheus(*store.snapshot())


def json_report() -> str:
    """Everything as a JSON object: `counters` by name, and `metrics` by name with unit (`nanoseconds`, `bytes` or
    `value`), `total_samples`, `accumulator`, `value_rate` and `rate` per second, and `percentiles`.
    """
    return formats.json_text(*store.snapshot())
