"""The lines of a growth measurement in log-log, as SVG."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .growth_axes import AXES
from .growth_rows import MEASURES, Row, series

#: Text and frames, and each mode's line and marker: readable on white and on black, as the background is transparent.
INK = "#808080"
LINES = {"eager": ("#c9781f", "s"), "lazy": ("#3b82d0", "o"), "openxla": ("#2a9d5c", "^")}


def svg(text: str) -> Path:
    """An argparse type: an SVG file, if it can be drawn."""
    if not text.endswith(".svg"):
        raise argparse.ArgumentTypeError(f"expected a name that ends with .svg, got {text!r}")
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("matplotlib is not installed: pip install 'openxla-torch[plot]'")
    return Path(text)


def draw(rows: Sequence[Row], file: Path) -> None:
    """Draws a panel for each axis and measure."""
    # matplotlib is an extra, and pyplot would look for a display
    matplotlib: Any = importlib.import_module("matplotlib")
    figures: Any = importlib.import_module("matplotlib.figure")
    found = series(rows)
    axes = list(dict.fromkeys(row.axis for row in rows))
    inks = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK)
    with matplotlib.rc_context({**inks, "svg.fonttype": "none", "svg.hashsalt": "growth", "font.size": 8}):
        figure = figures.Figure(figsize=(3.2 * len(MEASURES), 2.6 * len(axes)), layout="constrained")
        figure.patch.set_alpha(0)
        panels = figure.subplots(len(axes), len(MEASURES), squeeze=False)
        for line, axis in zip(panels, axes, strict=True):
            for panel, name in zip(line, MEASURES, strict=True):
                lines = {mode: values for (a, n, mode), values in found.items() if (a, n) == (axis, name)}
                _draw_panel(panel, axis, name, lines)
                _label_sizes(panel, sorted({row.size for row in rows if row.axis == axis}))
        handles, labels = panels[0][2].get_legend_handles_labels()  # of run times, which all modes have
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, format="svg", metadata={"Date": None})


def _draw_panel(panel: Any, axis: str, name: str, lines: dict[str, dict[int, float]]) -> None:
    panel.patch.set_alpha(0)
    panel.set(xscale="log", yscale="log", xlabel=axis, title=f"{name}, {MEASURES[name].unit}")
    panel.grid(color=INK, alpha=0.25, linewidth=0.5)
    for mode, values in lines.items():
        shown = {size: value for size, value in values.items() if value > 0}
        color, marker = LINES[mode]
        panel.plot(list(shown), list(shown.values()), color=color, marker=marker, markersize=4, label=mode)
    _draw_slope(panel, AXES[axis].run_exponent if name == "run" else 1.0, lines)


def _label_sizes(panel: Any, sizes: Sequence[int]) -> None:
    """Names every size at the axis, in place of powers of ten."""
    panel.set_xticks(sizes, [f"{size // 1000}k" if size % 1000 == 0 else str(size) for size in sizes])
    panel.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)


def _draw_slope(panel: Any, exponent: float, lines: dict[str, dict[int, float]]) -> None:
    """Draws the slope that is expected, through the last point of the highest line."""
    ends = [(max(values), values[max(values)], min(values)) for values in lines.values() if len(values) > 1]
    if not ends:
        return
    size, value, least = max(ends, key=lambda end: end[1])
    if value > 0:
        label = f"exponent {exponent:g}"
        panel.plot([least, size], [value * (least / size) ** exponent, value], color=INK, linestyle=":", linewidth=1)
        panel.annotate(label, (least, value * (least / size) ** exponent), color=INK, fontsize=6)
