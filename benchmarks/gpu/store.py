"""What is kept as the program goes on: a killed program loses nothing but the row in progress."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]

#: `rows.jsonl` has the form of a result file of `python -m benchmarks run`; all else is in the notes.
ROWS, NOTES, LOGS = "rows.jsonl", "notes.jsonl", "errors.log"

_IN_ROWS = ("environment", "row")


class Store:
    """A folder with the results so far. Each record is on the disk when `add` returns, and the pages are written anew.

    Args:
        folder: is made; files of an earlier program there are replaced.
        pages: file name → all records so far → Markdown.
    """

    def __init__(self, folder: Path, pages: Mapping[str, Callable[[Sequence[Record]], str]]):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.records: list[Record] = []
        self._pages = pages
        for name in (ROWS, NOTES, LOGS):
            (folder / name).write_text("")
        self.write_pages()

    def add(self, record: Record) -> None:
        """Appends a record, whose kind is its `record`."""
        self.records.append(record)
        with (self.folder / (ROWS if record["record"] in _IN_ROWS else NOTES)).open("a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.write_pages()

    def write_pages(self) -> None:
        """Writes each page beside the old one and replaces it, so that no reader sees a half."""
        for name, page in self._pages.items():
            try:
                text = page(self.records)
            except Exception:  # a page can be made again from the records: measuring goes on
                text = f"This page could not be written:\n\n```\n{traceback.format_exc()}```"
            temporary = self.folder / f".{name}"
            temporary.write_text(text + "\n")
            temporary.replace(self.folder / name)

    def log(self, title: str, text: str) -> None:
        """Appends what a failed process has printed."""
        with (self.folder / LOGS).open("a") as file:
            file.write(f"--- {title}\n{text}\n")

    def of(self, kind: str) -> list[Record]:
        """The records of a kind."""
        return [record for record in self.records if record["record"] == kind]
