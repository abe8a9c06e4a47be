"""The rows that passed (`passing.txt`), and the share of them that CI runs."""

from __future__ import annotations

import pathlib
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator

from . import rows
from .rows import Row

PATH = pathlib.Path(__file__).parent / "passing.txt"

#: One of so many rows outside of float32 on the lazy road is in CI's share.
ONE_OF = 64

#: The same of wrong calls, which have no other rows: a second or two each.
ONE_WRONG_OF = 8

_HEADER = """\
# Rows that pass, written by `python -m tests.operators pass`: database/entry/direction, then road=dtypes.
# CI runs a fixed share of them and fails when one no longer passes.
"""
_ALL_ROADS = "all"
_FIRST = ("float32", "lazy")


def write(passing: Iterable[Row], path: pathlib.Path = PATH) -> None:
    """One line for each entry and direction; roads of the same dtypes are together."""
    lines: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    wanted = set(passing)
    for row in rows.all_rows():
        if row in wanted:
            lines[f"{row.database}/{row.entry}/{row.direction}"][row.road].append(row.dtype)
    with path.open("w") as file:
        file.write(_HEADER)
        for name, roads in lines.items():
            file.write(f"{name} {' '.join(_columns(name.rpartition('/')[2], roads))}\n")


def _columns(direction: str, roads: dict[str, list[str]]) -> Iterator[str]:
    grouped: dict[str, list[str]] = defaultdict(list)
    for road, dtypes in roads.items():
        grouped[",".join(sorted(dtypes, key=(*rows.DTYPES, "int8", "int16", rows.ANY_DTYPE).index))].append(road)
    for dtypes, found in grouped.items():
        every = tuple(sorted(found)) == tuple(sorted(rows.ROADS_OF[direction]))
        yield f"{_ALL_ROADS if every else ','.join(found)}={dtypes}"


def read(path: pathlib.Path = PATH) -> Iterator[Row]:
    """The rows of the file."""
    for line in path.read_text().splitlines():
        if line.startswith("#"):
            continue
        name, *columns = line.split()
        database, entry, direction = name.split("/")
        for column in columns:
            roads, _, dtypes = column.partition("=")
            for road in rows.ROADS_OF[direction] if roads == _ALL_ROADS else roads.split(","):
                for dtype in dtypes.split(","):
                    yield Row(database, entry, direction, dtype, road)


def is_in_share(row: Row) -> bool:
    """Whether CI runs the row: every operator and module forward and backward in float32 on the lazy road, and some of
    the rest, always the same.
    """
    if row.database != "foreach" and row.direction in ("forward", "backward") and (row.dtype, row.road) == _FIRST:
        return True
    return zlib.crc32(str(row).encode()) % (ONE_WRONG_OF if row.direction == "wrong" else ONE_OF) == 0
