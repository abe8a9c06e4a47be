"""Stored outcomes: one JSON object a line, the last one of a row counts."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from .rows import Row

PATH = pathlib.Path(__file__).parent / "results" / "rows.jsonl"
_KEYS = ("database", "entry", "direction", "dtype", "road")


def row_of(outcome: dict[str, Any]) -> Row:
    """The row that an outcome is of."""
    return Row(*(outcome[key] for key in _KEYS))


def append(outcome: dict[str, Any], path: pathlib.Path = PATH) -> None:
    """Adds an outcome; whole lines, so that several runs may write at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = (json.dumps(outcome) + "\n").encode()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, line)
    finally:
        os.close(file)


def load(path: pathlib.Path = PATH) -> dict[Row, dict[str, Any]]:
    """The last outcome of every row that was ever run."""
    return {row_of(outcome): outcome for outcome in _lines(path)}


def _lines(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        with path.open() as file:
            for line in file:
                yield json.loads(line)
