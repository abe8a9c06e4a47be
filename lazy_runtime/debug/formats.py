"""Counters and metrics as text: PyTorch/XLA's report, Prometheus' format, JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from ..common.metrics import Metric, Unit

PERCENTILES = (0.01, 0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 0.95, 0.99)  # torch/csrc/lazy/core/config.cpp


class Summary(NamedTuple):
    """What reports say of a metric.

    Attributes:
        value_rate: sum of the kept samples per second between the first and the last of them; None if that is no time.
        rate: their number per second.
        percentiles: of the kept samples, at `PERCENTILES`.
    """

    value_rate: float | None
    rate: float | None
    percentiles: tuple[float, ...]


def summary(metric: Metric) -> Summary:
    """The rates and percentiles of a metric with samples, as torch/csrc/lazy/core/metrics.cpp computes them."""
    samples = metric.samples
    seconds = samples[-1][0] - samples[0][0]
    ordered = sorted(value for _, value in samples)
    percentiles = tuple(ordered[int(percentile * len(ordered))] for percentile in PERCENTILES)
    if seconds <= 0:
        return Summary(None, None, percentiles)
    return Summary(sum(ordered) / seconds, len(ordered) / seconds, percentiles)


def time_text(nanoseconds: float) -> str:
    """`06m09s401ms746.001us`: from the largest unit that there is, down to microseconds."""
    rest = round(nanoseconds)
    text = ""
    for suffix, scale, width in _PARTS:
        part, rest = divmod(rest, scale)
        if part or text:
            text += f"{part:0{width}d}{suffix}"
    return f"{text}{rest / 1000:07.3f}us"


_PARTS = (
    ("d", 86_400_000_000_000, 2),
    ("h", 3_600_000_000_000, 2),
    ("m", 60_000_000_000, 2),
    ("s", 1_000_000_000, 2),
    ("ms", 1_000_000, 3),
)


def bytes_text(count: float) -> str:
    """`1.29GB`, in powers of 1,024."""
    for suffix in ("B", "KB", "MB", "GB", "TB"):
        if count < 1024:
            return f"{count:.2f}{suffix}"
        count /= 1024
    return f"{count:.2f}PB"


def value_text(value: float) -> str:
    """`35.00`."""
    return f"{value:.2f}"


_TEXT = {Unit.TIME: time_text, Unit.BYTES: bytes_text, Unit.VALUE: value_text}


def classic(counters: Mapping[str, int], measured: Mapping[str, Metric]) -> str:
    """PyTorch/XLA's report."""
    lines = []
    for name, metric in measured.items():
        text, found = _TEXT[metric.unit], summary(metric)
        lines += [
            f"Metric: {name}",
            f"  TotalSamples: {metric.total}",
            f"  Accumulator: {text(metric.accumulator)}",
        ]
        if found.value_rate is not None:
            lines += [f"  ValueRate: {text(found.value_rate)} / second", f"  Rate: {found.rate:g} / second"]
        percentiles = zip(PERCENTILES, found.percentiles, strict=True)
        lines.append(f"  Percentiles: {'; '.join(f'{at * 100:g}%={text(value)}' for at, value in percentiles)}")
    for name, count in counters.items():
        lines += [f"Counter: {name}", f"  Value: {count}"]
    return "".join(f"{line}\n" for line in lines)


def prometheus(counters: Mapping[str, int], measured: Mapping[str, Metric]) -> str:
    """Prometheus' text format. Operators are one counter with their name as label; so are reasons of recompiles."""
    families: dict[str, list[str]] = {}
    for name, count in counters.items():
        family, label = _family(name)
        families.setdefault(family, []).append(f"{family}{label} {count}\n")
    parts = [f"# TYPE {family} counter\n{''.join(samples)}" for family, samples in families.items()]
    for name, metric in measured.items():
        scale = 1e-9 if metric.unit is Unit.TIME else 1.0
        suffix = {Unit.TIME: "_seconds", Unit.BYTES: "_bytes", Unit.VALUE: ""}[metric.unit]
        family = f"xla_{_snake(name)}"
        if not family.endswith(suffix):
            family += suffix
        parts.append(f"# TYPE {family} summary\n")
        for at, value in zip(PERCENTILES, summary(metric).percentiles, strict=True):
            parts.append(f'{family}{{quantile="{at:g}"}} {value * scale:.9g}\n')
        parts.append(f"{family}_sum {metric.accumulator * scale:.9g}\n{family}_count {metric.total}\n")
    return "".join(parts)


_LABELS = {
    "xla": ("xla_operators_total", "operator"),
    "aten": ("xla_fallbacks_total", "operator"),
    "Recompile": ("xla_recompiles_total", "cause"),
    "PersistentCacheMiss": ("xla_persistent_cache_misses_total", "reason"),
}


def _family(name: str) -> tuple[str, str]:
    """The Prometheus name of a counter, and its labels."""
    prefix, separator, rest = name.partition(":")
    known = _LABELS.get(prefix)
    if separator and known is not None:
        value = rest.lstrip(": ").replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        return known[0], f'{{{known[1]}="{value}"}}'
    return f"xla_{_snake(name)}_total", ""


def _snake(name: str) -> str:
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return re.sub(r"\W+", "_", name).strip("_").lower()


def json_text(counters: Mapping[str, int], measured: Mapping[str, Metric]) -> str:
    """See `debug.metrics.json_report`."""
    units = {Unit.TIME: "nanoseconds", Unit.BYTES: "bytes", Unit.VALUE: "value"}
    described = {}
    for name, metric in measured.items():
        found = summary(metric)
        described[name] = {
            "unit": units[metric.unit],
            "total_samples": metric.total,
            "accumulator": metric.accumulator,
            "value_rate": found.value_rate,
            "rate": found.rate,
            "percentiles": {f"{at * 100:g}%": v for at, v in zip(PERCENTILES, found.percentiles, strict=True)},
        }
    return json.dumps({"counters": dict(counters), "metrics": described}, indent=1)


# ---- numbers in sentences


def quantity(count: float) -> str:
    """`4.1 G`, in powers of 1,000."""
    for unit in ("", "k", "M", "G", "T"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} P"


def duration(seconds: float) -> str:
    """`1.3 s`, `84 ms`, `0.4 ms`."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.1f} ms"


def counted(number: int, what: str) -> str:
    """`1 operator`, `7 operators`."""
    return f"{number} {what}{'s' * (number != 1)}"
