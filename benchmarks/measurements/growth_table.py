"""The tables of a growth measurement: its points, and the exponents of the power laws that fit them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

from . import power_law
from .growth_axes import AXES
from .growth_rows import MEASURES, Row, series
from .power_law import PowerLaw


def points(axis: str, rows: Sequence[Row]) -> str:
    """The table of what each point of an axis took."""
    body = [
        [str(row.size), row.mode, *(_number(measure.of(row)) for measure in MEASURES.values()), row.note]
        for row in rows
        if row.axis == axis
    ]
    headers = ["size", "mode", *(f"{name}, {measure.unit}" for name, measure in MEASURES.items()), ""]
    align = ["right", "left", *["right"] * len(MEASURES), "left"]
    text = tabulate(body, headers=headers, tablefmt="github", disable_numparse=True, colalign=align)
    return f"### Cost by {axis}: {AXES[axis].title}\n\n{text}"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def exponents(rows: Sequence[Row]) -> str:
    """The table of exponents, by axis, measure and mode."""
    body: list[list[Any]] = []
    for (axis, name, mode), values in series(rows).items():
        law = power_law.fit(list(values), list(values.values()))
        missing = [row.size for row in rows if (row.axis, row.mode) == (axis, mode) and row.point is None]
        body.append([axis, name, mode, *_cells(axis, name, law, missing)])
    headers = ["axis", "measure", "mode", "sizes fitted", "constant", "exponent", "error", "at most linear"]
    align = ["left", "left", "left", "left", "right", "right", "right", "left"]
    text = tabulate(body, headers=headers, tablefmt="github", disable_numparse=True, colalign=align)
    return f"### Growth: exponents of power laws\n\n{text}\n\n{_LEGEND}"


def _cells(axis: str, name: str, law: PowerLaw | None, missing: Sequence[int]) -> list[str]:
    """The sizes, the constant, the exponent, its error and the verdict.

    Args:
        missing: sizes that were not measured, of which nothing is known.
    """
    unknown = f"; unknown of {', '.join(map(str, missing))}" if missing else ""
    if law is None:
        return ["", "", "", "", f"fewer than two values{unknown}"]
    fitted = f"{law.sizes[0]} to {law.sizes[-1]}"
    constant = f"{_number(law.constant)} {MEASURES[name].unit}"
    return [fitted, constant, f"{law.exponent:.2f}", f"{law.error:.2f}", _judged(axis, name, law) + unknown]


def _judged(axis: str, name: str, law: PowerLaw) -> str:
    linear = power_law.verdict(law)
    nature = AXES[axis].run_exponent if name == "run" else 1.0
    if linear == "yes" or nature == 1.0:
        return linear
    known = power_law.verdict(law, nature)
    return f"{linear}: of exponent {nature:g} by nature, at most that: {known}"


_LEGEND = (
    "A power law, constant + factor * size^exponent, is fitted to the upper half of the sizes by least squares in "
    "log-log. The line through the lower half, extended to size 0, gives the constant. It is 0 with fewer than "
    f"{power_law.SIZES_FOR_CONSTANT} sizes, or where the upper half grows by less than a factor of {power_law.FLAT}."
    f"\n\nThe error is what independent errors of {power_law.NOISE:.0%} in the values change the exponent by. At most "
    f"linear: yes up to {1 + power_law.ALLOWANCE:g}; within noise where the exponent less its error is so; else no."
    "\n\nTrace: the first run, less compile and execution (metric ExecuteTime). Compile: jax's tracing and XLA (metric "
    "CompileTime). Run: the median of repeated runs. Of several processes (--repeat) the least counts. Memory: the "
    "host's peak, beyond the process after its warm-up."
)
