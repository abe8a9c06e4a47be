"""Comparing a report of `debug.metrics` with earlier ones."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

_METRIC = re.compile(
    r"^Metric: (?P<name>\S+)\n\s+TotalSamples: (?P<TotalSamples>\S+)\n\s+Accumulator: (?P<Accumulator>\S+)"
    r"(?:\n\s+(?!Percentiles:)\S.*)*\n\s+Percentiles: (?P<percentiles>.*)$",
    re.MULTILINE,
)
_COUNTER = re.compile(r"^Counter: (?P<name>\S+)\n\s+Value: (?P<value>\d+)$", re.MULTILINE)
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:d|h|ms|us|ns|m|s))+")
_SIZE = re.compile(r"(?:\d+(?:\.\d+)?(?:PB|TB|GB|MB|KB|B))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)([A-Za-z]+)")
_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_MEGABYTES = {"PB": 1e9, "TB": 1e6, "GB": 1e3, "MB": 1.0, "KB": 1e-3, "B": 1e-6}


def _number(text: str) -> tuple[float, str]:
    """A number of a report, and what it is in: seconds ("sec") for durations, megabytes ("mb") for sizes, else nothing.

    Raises:
        ValueError: the text is none.
    """
    for pattern, units, name in ((_DURATION, _SECONDS, "sec"), (_SIZE, _MEGABYTES, "mb")):
        if pattern.fullmatch(text):
            return sum(float(value) * units[unit] for value, unit in _PART.findall(text)), name
    try:
        return float(text), ""
    except ValueError:
        raise ValueError(f"{text!r} is no number, duration or size of a metrics report") from None


def parse_metrics_report(report: str, dehumanize: bool = True) -> dict[str, Any]:
    """The numbers of a report.

    Args:
        report: what `debug.metrics.metrics_report()` gave.
        dehumanize: give numbers; otherwise pairs of the number and the text that the report has for it.

    Returns:
        name → number. A metric has `NAME__TotalSamples`, `NAME__Accumulator_sec` (`_mb` for sizes, nothing for
        values) and `NAME__Percentile_50_sec`, ...; a counter has `NAME__Value`.
    """
    found: dict[str, Any] = {}
    for metric in _METRIC.finditer(report):
        texts = {"TotalSamples": metric["TotalSamples"], "Accumulator": metric["Accumulator"]}
        for percentile in metric["percentiles"].split(";"):
            percent, _, text = percentile.strip().partition("%=")
            texts[f"Percentile_{percent}"] = text
        for key, text in texts.items():
            value, unit = _number(text)
            name = f"{metric['name']}__{key}" + (f"_{unit}" if unit else "")
            found[name] = value if dehumanize else (value, text)
    for counter in _COUNTER.finditer(report):
        found[f"{counter['name']}__Value"] = int(counter["value"])
    return found


def get_data_points_from_metrics_reports(metrics_reports: Sequence[str]) -> dict[str, list[Any]]:
    """The numbers of several reports.

    Returns:
        name → a number for each report, in order; None where a report does not have it.
    """
    parsed = [parse_metrics_report(report) for report in metrics_reports]
    names = dict.fromkeys(name for each in parsed for name in each)
    return {name: [each.get(name) for each in parsed] for name in names}


def compare_metrics(
    data_points: Mapping[str, Sequence[Any]], metrics_report: str, config: Mapping[str, str] | None = None
) -> str:
    """What of a report is not as earlier ones let expect.

    Args:
        data_points: of `get_data_points_from_metrics_reports`.
        metrics_report: the report.
        config: `base_expression`, and `NAME_expression` for single numbers: Python expressions of `v`, the number,
            `v_mean` and `v_stddev`, the earlier ones' mean and standard deviation, which are true where all is well. By
            default a number is to be at most two standard deviations above the mean.

    Returns:
        a line for each number whose expression is false, and for each operator (`aten::`) that has newly been called on
        the CPU; empty if there is none.
    """
    config = {"base_expression": "v <= v_mean + (v_stddev * 2.0)", **(config or {})}
    lines = []
    for name, value in sorted(parse_metrics_report(metrics_report).items()):
        known = [each for each in data_points.get(name, ()) if each is not None]
        if not known:
            if name.startswith("aten::"):
                lines.append(f"{name}: {value}, which earlier reports do not have\n")
            continue
        mean, deviation = statistics.fmean(known), statistics.pstdev(known)
        expression = config.get(f"{name}_expression", config["base_expression"])
        if not eval(expression, {"__builtins__": {}}, {"v": value, "v_mean": mean, "v_stddev": deviation}):
            lines.append(f"{name}: {value} fails {expression}, with the mean {mean} and the deviation {deviation}\n")
    return "".join(lines)
