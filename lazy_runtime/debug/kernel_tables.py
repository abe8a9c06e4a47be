"""The tables of kernels as text: for each kind of operators the rows in order, and whether each is there."""

from __future__ import annotations

import platform as host
from collections.abc import Iterator, Sequence

from .. import ops
from ..common import processor
from ..ops import kernels
from ..ops.kernels import Kernel, Refused, Table


def text(platform: str = "cpu", kinds: Sequence[str] = ()) -> str:
    """The tables for a platform, and for this processor.

    Args:
        platform: jax's name of it.
        kinds: of operators; by default all.

    Returns:
        A line for each kernel, in the order in which they are asked, and one for each of its thresholds.

    Raises:
        ValueError: there is no table of such a kind.
    """
    ops.load_all()
    unknown = [kind for kind in kinds if kind not in kernels.tables]
    if unknown:
        raise ValueError(f"no table of kernels for {unknown[0]!r}, but for {', '.join(sorted(kernels.tables))}")
    where = processor.description() if platform == "cpu" else host.node()
    lines = [f"Kernels on {platform} ({where}). The first that accepts an operator computes it."]
    for kind, table in sorted(kernels.tables.items()):
        if not kinds or kind in kinds:
            lines += ["", kind, *_rows(table, platform)]
    return "\n".join(lines)


def _rows(table: Table, platform: str) -> Iterator[str]:
    width = max(len(row.name) for row in table.rows)
    for number, row in enumerate(table.rows, 1):
        yield f"  {number:>2}. {row.name:{width}}  {', '.join(_facts(row, platform))}"
        for name, value in row.thresholds().items():
            yield f"{'':{width + 8}}{name}: {f'{value:,}' if isinstance(value, int) else value}"


def _facts(row: Kernel, platform: str) -> Iterator[str]:
    if row.packing is not None:
        yield "packs kept weights" if row.lower is not None else "for kept weights alone"
    verdict = row.available(platform)
    yield f"not available: {verdict.reason}" if isinstance(verdict, Refused) else "available"
