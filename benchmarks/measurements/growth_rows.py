"""Rows of a growth measurement, and their values by axis, measure and mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .growth_point import Point


class Row(NamedTuple):
    """A point, or the reason why there is none.

    Attributes:
        point: None if it was not measured.
        note: why not; empty if it was.
    """

    axis: str
    size: int
    mode: str
    point: Point | None
    note: str = ""

    def record(self) -> dict[str, Any]:
        """The row as it stands in a result file."""
        where = {"axis": self.axis, "size": self.size, "mode": self.mode}
        measured = self.point._asdict() if self.point is not None else {}
        return {"record": "point", **where, **measured, "note": self.note}


class Measure(NamedTuple):
    """A cost.

    Attributes:
        unit: of its values.
        value: a point's.
    """

    unit: str
    value: Callable[[Point], float | None]

    def of(self, row: Row) -> float | None:
        """A row's value; None if it has none."""
        return None if row.point is None else self.value(row.point)


MEASURES = {
    "trace": Measure("s", lambda point: point.trace),
    "compile": Measure("s", lambda point: point.compile),
    "run": Measure("s", lambda point: point.run),
    "memory": Measure("MiB", lambda point: point.memory / 2**20),
}


def series(rows: Sequence[Row]) -> dict[tuple[str, str, str], dict[int, float]]:
    """The values by size, of each axis, measure and mode that has some by its nature."""
    found: dict[tuple[str, str, str], dict[int, float]] = {}
    for axis in dict.fromkeys(row.axis for row in rows):
        for name, measure in MEASURES.items():
            for row in rows:
                if row.axis != axis or (row.mode == "eager" and name in ("trace", "compile")):
                    continue
                values = found.setdefault((axis, name, row.mode), {})
                value = measure.of(row)
                if value is not None:
                    values[row.size] = value
    return found
