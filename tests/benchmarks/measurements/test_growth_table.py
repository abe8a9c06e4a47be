"""The text of the tables."""

from __future__ import annotations

from benchmarks.measurements import growth_table
from benchmarks.measurements.growth_axes import AXES
from benchmarks.measurements.growth_point import Point
from benchmarks.measurements.growth_rows import Row


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")][2:]


def of_run(axis: str, exponent: float, mode: str = "lazy") -> list[Row]:
    """Rows of linear costs, but for the run's exponent."""
    return [
        Row(axis, size, mode, Point(size / 100, size / 10, size**exponent / 1e6, size << 20, 1 << 30))
        for size in AXES[axis].sizes
    ]


def test_points_have_their_costs_or_their_reason():
    point = Point(0.01234, 1.5, 2e-5, 1500 << 20, 1 << 31)
    rows = [
        Row("depth", 6, "eager", point._replace(trace=None, compile=None)),
        Row("depth", 6, "lazy", point),
        Row("depth", 12, "lazy", None, "exceeded 60 s in a.py:3 (f)"),
        Row("batch", 1, "lazy", point),
    ]
    text = growth_table.points("depth", rows)
    assert text.startswith("### Cost by depth: decoder layers")
    assert cells(text) == [
        ["6", "eager", "", "", "2e-05", "1500", ""],
        ["6", "lazy", "0.0123", "1.5", "2e-05", "1500", ""],
        ["12", "lazy", "", "", "", "", "exceeded 60 s in a.py:3 (f)"],
    ]


def test_linear_growth_is_told_from_what_is_more():
    for exponent, expected in ((1.0, "yes"), (2.0, "no")):
        found = cells(growth_table.exponents(of_run("depth", exponent)))
        assert [(row[1], row[-1]) for row in found] == [
            ("trace", "yes"),
            ("compile", "yes"),
            ("run", expected),
            ("memory", "yes"),
        ]
        assert found[0][3:6] == ["24 to 48", "0 s", "1.00"]


def test_attention_is_quadratic_by_nature_and_the_table_says_so():
    for exponent, expected in (
        (1.0, "yes"),
        (2.0, "no: of exponent 2 by nature, at most that: yes"),
        (3.0, "no: of exponent 2 by nature, at most that: no"),
    ):
        found = cells(growth_table.exponents(of_run("sequence", exponent)))
        assert [row[-1] for row in found] == ["yes", "yes", expected, "yes"]


def test_eager_has_no_exponents_of_tracing_and_compile():
    assert [row[1] for row in cells(growth_table.exponents(of_run("batch", 1.0, "eager")))] == ["run", "memory"]


def test_nothing_is_said_of_one_size():
    found = cells(growth_table.exponents(of_run("batch", 1.0)[:1]))
    assert {row[-1] for row in found} == {"fewer than two values"}


def test_sizes_that_were_not_measured_are_named_beside_the_verdict():
    rows = of_run("depth", 1.0)
    rows[2:] = [row._replace(point=None, note="exceeded 60 s") for row in rows[2:]]
    assert {row[-1] for row in cells(growth_table.exponents(rows))} == {"yes; unknown of 24, 48"}
