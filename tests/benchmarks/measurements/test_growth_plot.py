"""The lines as SVG."""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree as ElementTree

import pytest

from benchmarks.__main__ import main
from benchmarks.measurements import growth_plot
from benchmarks.measurements.growth_point import MODES, Point
from benchmarks.measurements.growth_rows import MEASURES, Row


def contrast(color: str, background: float) -> float:
    """The contrast ratio of WCAG between a color and a gray of a luminance."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    luminance = sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    low, high = sorted((luminance, background))
    return (high + 0.05) / (low + 0.05)


def test_all_colors_are_readable_on_white_and_on_black():
    assert growth_plot.LINES.keys() == MODES.keys()
    for color in (growth_plot.INK, *(color for color, _ in growth_plot.LINES.values())):
        assert contrast(color, 0.0) >= 3, color
        assert contrast(color, 1.0) >= 3, color


def test_without_matplotlib_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as error:
        main(["growth", "--plot", "lines.svg"])
    assert error.value.code == 2
    message = "matplotlib is not installed: pip install 'openxla-torch[plot]'"
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_panel_for_each_axis_and_measure(tmp_path):
    rows = [
        Row(axis, size, mode, Point(None if mode == "eager" else 1.0, size / 10, size / 1e3, size << 20, 1 << 30))
        for axis in ("depth", "sequence")
        for size in (1, 2, 4)
        for mode in MODES
    ]
    file = tmp_path / "folder" / "lines.svg"
    growth_plot.draw([*rows, Row("depth", 8, "lazy", None, "exceeded")], file)
    text = "\n".join(ElementTree.parse(file).getroot().itertext())
    for name, measure in MEASURES.items():
        assert text.count(f"{name}, {measure.unit}") == 2
    for expected in (*MODES, "depth", "sequence", "exponent 2"):
        assert expected in text
