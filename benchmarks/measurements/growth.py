"""How the cost of a program grows with its work, along several axes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from .. import environment
from . import growth_plot, growth_point, growth_table
from .growth_axes import AXES
from .growth_point import LimitError
from .growth_rows import Row


def rows(axes: Sequence[str], modes: Sequence[str], is_quick: bool, limit_s: float, repeat: int = 1) -> Iterator[Row]:
    """Measures each point in processes of its own; modes take turns, so that noise falls on all alike.

    Args:
        repeat: processes of each point; the least of each measure counts, as other work on the machine only adds.
    """
    cases = [(axis, size, mode) for axis in axes for size in _sizes(axis, is_quick) for mode in modes]
    exceeded: dict[tuple[str, str], int] = {}
    with tqdm(cases, unit="point", dynamic_ncols=True, disable=None) as bar:
        for axis, size, mode in bar:
            bar.set_postfix_str(f"{axis} {size} {mode}")
            if (axis, mode) in exceeded:
                yield Row(axis, size, mode, None, f"skipped: {exceeded[axis, mode]} exceeded the limit")
                continue
            try:
                found = [growth_point.measured(axis, size, mode, limit_s) for _ in range(repeat)]
                yield Row(axis, size, mode, growth_point.least(found))
            except LimitError as error:
                exceeded[axis, mode] = size
                yield Row(axis, size, mode, None, f"exceeded {limit_s:g} s {error}")
            except RuntimeError as error:
                yield Row(axis, size, mode, None, f"failed: {str(error).strip().splitlines()[-1]}")


def _sizes(axis: str, is_quick: bool) -> Sequence[int]:
    return AXES[axis].quick if is_quick else AXES[axis].sizes


def _written(found: Iterable[Row], output: Path) -> Iterator[Row]:
    """The same rows; each is in the file as soon as it is measured."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("w") as file:
        file.write(json.dumps({"record": "environment", **environment.collect()}) + "\n")
        for row in found:
            file.write(json.dumps(row.record()) + "\n")
            file.flush()
            yield row


def tables(
    axes: Sequence[str],
    modes: Sequence[str],
    is_quick: bool,
    limit_s: float,
    repeat: int = 1,
    output: Path | None = None,
    plot: Path | None = None,
) -> list[str]:
    """Measures all points, writes the files, and returns the tables.

    Args:
        limit_s: seconds that a process may take.
        repeat: processes of each point.
        output: gets every row, as JSON lines.
        plot: gets the lines, as SVG.
    """
    found: Iterable[Row] = rows(axes, modes, is_quick, limit_s, repeat)
    measured = list(found if output is None else _written(found, output))
    if plot is not None:
        growth_plot.draw(measured, plot)
    return [*(growth_table.points(axis, measured) for axis in axes), growth_table.exponents(measured)]
