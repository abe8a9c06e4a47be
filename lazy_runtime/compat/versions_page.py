"""`docs/versions.md`, made of the tables of private names.

python -m lazy_runtime.compat > docs/versions.md
"""

from __future__ import annotations

import itertools

from . import distributed, dynamo, jaxlib, seen, torch, tracing
from .rows import SUPPORTED, Row

#: The tables, each under its title on the page.
TABLES: dict[str, tuple[Row, ...]] = {
    "torch": torch.ROWS,
    "Traces": tracing.ROWS,
    "Dynamo": dynamo.ROWS,
    "`torch.distributed`": distributed.ROWS,
    "jax and jaxlib": jaxlib.ROWS,
}

_TORCH, _JAX = SUPPORTED["torch"], SUPPORTED["jax"]


def markdown() -> str:
    """`docs/versions.md`."""
    lines = [_head()]
    for title, rows in TABLES.items():
        lines += [
            f"### {title}",
            "",
            "| names | versions | what for | what is lost without it | what does not start |",
            "|---|---|---|---|---|",
        ]
        for (why, lost, versions, by), alike in itertools.groupby(rows, _cells):
            names = ", ".join(f"`{row.name}`" + row.is_exchanged * r"\*" for row in alike)
            lines.append(f"| {names} | {_range(versions)} | {why} | {lost} | {by} |")
        lines.append("")
    return "\n".join(lines)


def _cells(row: Row) -> tuple[str, str, tuple[str, ...], str]:
    """What names share that stand in one line."""
    return row.why, row.lost, row.versions(), row.needed_by


def _range(versions: tuple[str, ...]) -> str:
    """Versions that follow each other: `all`, `2.13`, `2.12 to 2.15`."""
    if versions in SUPPORTED.values():
        return "all"
    return versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"


def _head() -> str:
    return f"""# Versions of torch and jax

Supported are torch {_TORCH[0]} to {_TORCH[-1]} and jax {_JAX[0]} to {_JAX[-1]}.

## What was tried

`make versions` installs the package beside other versions, and runs a part of the tests there (`tests/versions`).

{chr(10).join(seen.markdown())}

## Private names

The package uses names that torch and jax keep to themselves, and another version may not have one. All of them stand
in `lazy_runtime/compat/`, and here. Where a name is missing, `import torch` still works, and the columns say what
does not. Where that is the whole xla device, or the backend, the error at its start names what is missing.
An asterisk marks what the package exchanges for a function of its own.

This page is made by `python -m lazy_runtime.compat`.
"""
