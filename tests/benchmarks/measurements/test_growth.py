"""The command, its limit, and what it skips."""

from __future__ import annotations

import json

import pytest

from benchmarks.__main__ import main
from benchmarks.measurements import growth, growth_point
from benchmarks.measurements.growth_point import LimitError, Point


def test_from_the_command_to_the_table(tmp_path, capsys):
    output = tmp_path / "rows.jsonl"
    command = ["growth", "--quick", "--axes", "writes", "--modes", "lazy", "--output", str(output)]
    assert main(command) == 0
    printed = capsys.readouterr().out
    rows = [line.split("|")[1:-1] for line in printed.splitlines() if "| lazy" in line]
    points, laws = rows[:3], rows[3:]
    assert [int(row[0]) for row in points] == [5, 10, 20]
    assert all(float(cell) > 0 for row in points for cell in row[2:6])
    assert [row[1].strip() for row in laws] == ["trace", "compile", "run", "memory"]
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert [record["record"] for record in records] == ["environment", "point", "point", "point"]
    assert [record["size"] for record in records[1:]] == [5, 10, 20]


def test_larger_sizes_than_one_beyond_the_limit_are_skipped(monkeypatch):
    def measured(axis: str, size: int, mode: str, limit_s: float) -> Point:
        if mode == "openxla" and size == 300:
            raise LimitError("in a.py:3 (f)")
        if mode == "lazy" and size == 300:
            raise RuntimeError("here failed: Traceback\nValueError: no")
        return Point(1.0, 1.0, 1.0, 1, 1)

    monkeypatch.setattr(growth_point, "measured", measured)
    rows = list(growth.rows(["writes"], ["lazy", "openxla"], False, 60.0))
    assert {(row.size, row.mode): row.note for row in rows if row.point is None} == {
        (300, "lazy"): "failed: ValueError: no",
        (300, "openxla"): "exceeded 60 s in a.py:3 (f)",
        **{(size, "openxla"): "skipped: 300 exceeded the limit" for size in (1000, 3000, 10_000)},
    }
    assert len(rows) == 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--axes", "width"], "unknown axis 'width': the names are depth, sequence, batch, writes, shapes"),
        (["--limit", "0"], "expected a number of at least 0.1, got '0'"),
        (["--plot", "lines.png"], "expected a name that ends with .svg, got 'lines.png'"),
    ],
)
def test_bad_arguments_say_what_would_be_good(arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(["growth", *arguments])
    assert message in " ".join(capsys.readouterr().err.split())
