"""Which versions of torch, jax and Python were tried together, and what the tests said (`python -m tests.versions`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("seen.json")


def table() -> list[dict[str, Any]]:
    """What was seen, by version: `python`, `torch`, `jax`, `commit`, how many tests `passed`, `failed` and were
    `skipped`, and the names of the `failures`.
    """
    return json.loads(FILE.read_text()) if FILE.exists() else []


def record(found: dict[str, Any]) -> None:
    """Adds what was seen, in the place of what was seen with the same versions before."""
    rows = [row for row in table() if _versions(row) != _versions(found)]
    rows = sorted([*rows, found], key=_versions)
    FILE.write_text(json.dumps(rows, indent=1) + "\n")


def markdown() -> list[str]:
    """The table's lines in `docs/versions.md`."""
    lines = ["| Python | torch | jax | commit | passed | failed | skipped |", "|---|---|---|---|---|---|---|"]
    for row in table():
        cells = (row[name] for name in ("python", "torch", "jax", "commit", "passed", "failed", "skipped"))
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def _versions(row: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    """The versions as numbers, so that 3.9 comes before 3.10."""
    return tuple(
        tuple(int(part) for part in row[name].split("+")[0].split(".") if part.isdigit())
        for name in ("python", "torch", "jax")
    )
