"""Rows and their values."""

from __future__ import annotations

from benchmarks.measurements.growth_point import Point
from benchmarks.measurements.growth_rows import Row, series

POINT = Point(0.5, 2.0, 0.25, 3 << 20, 4 << 20)


def test_a_record_has_all_that_was_measured():
    assert Row("depth", 6, "lazy", POINT).record() == {
        "record": "point",
        "axis": "depth",
        "size": 6,
        "mode": "lazy",
        "trace": 0.5,
        "compile": 2.0,
        "run": 0.25,
        "memory": 3 << 20,
        "peak": 4 << 20,
        "note": "",
    }
    assert Row("depth", 6, "lazy", None, "why").record()["note"] == "why"


def test_values_by_size():
    found = series(
        [Row("depth", 6, "lazy", POINT), Row("depth", 12, "lazy", None, "why"), Row("depth", 6, "eager", POINT)]
    )
    assert found == {
        ("depth", "trace", "lazy"): {6: 0.5},
        ("depth", "compile", "lazy"): {6: 2.0},
        ("depth", "run", "lazy"): {6: 0.25},
        ("depth", "run", "eager"): {6: 0.25},
        ("depth", "memory", "lazy"): {6: 3.0},
        ("depth", "memory", "eager"): {6: 3.0},
    }
