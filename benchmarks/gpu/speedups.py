"""Speedups, their geometric means, and shares of the roofline, from the rows of models."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .. import roofline
from .precision import OURS

Record = dict[str, Any]
Modes = Mapping[str, Record]  # role → row

#: What a user could take in place of this package.
OTHERS = ("eager", "inductor", "graphs")


class Standing(NamedTuple):
    """One model in one test and precision.

    Attributes:
        speedup: of our fastest mode over the fastest other.
    """

    model: str
    test: str
    precision: str
    speedup: float
    modes: Modes


def grouped(rows: Iterable[Record]) -> dict[tuple[str, str], dict[str, dict[str, Record]]]:
    """(test, precision) → model → role → row. Of two rows of one role the later counts."""
    found: dict[tuple[str, str], dict[str, dict[str, Record]]] = {}
    for row in rows:
        models = found.setdefault((row["test"], row["precision"]), {})
        models.setdefault(row["model"], {})[row["role"]] = row
    return found


def milliseconds(modes: Modes, role: str) -> float | None:
    """The median of a role, if it has one."""
    return modes.get(role, {}).get("median_ms")


def fastest(modes: Modes, of: Sequence[str]) -> tuple[float, str] | None:
    """The least median of some roles, and whose it is."""
    found = [(median, role) for role in of if (median := milliseconds(modes, role)) is not None]
    return min(found, default=None)


def speedup(modes: Modes, role: str, over: Sequence[str]) -> float | None:
    """How many times as fast a role is as the fastest of others."""
    ours, theirs = milliseconds(modes, role), fastest(modes, over)
    return None if ours is None or theirs is None else theirs[0] / ours


def geomean(values: Iterable[float | None]) -> str:
    """The geometric mean of those that are known, and of how many it is where some are not."""
    every = list(values)
    known = [value for value in every if value is not None]
    if not known:
        return "-"
    counted = "" if len(known) == len(every) else f" (of {len(known)})"
    return f"{statistics.geometric_mean(known):.2f}{counted}"


def standings(rows: Iterable[Record]) -> list[Standing]:
    """All models that have both times, the one where this package is slowest first."""
    found = []
    for (test, precision), models in grouped(rows).items():
        for model, modes in models.items():
            ours, theirs = fastest(modes, OURS), fastest(modes, OTHERS)
            if ours is not None and theirs is not None:
                found.append(Standing(model, test, precision, theirs[0] / ours[0], modes))
    return sorted(found, key=lambda each: each.speedup)


def worst(rows: Iterable[Record], count: int) -> list[Standing]:
    """So many models, each in the test where this package stands worst."""
    found: dict[str, Standing] = {}
    for each in standings(rows):
        found.setdefault(each.model, each)
    return list(found.values())[:count]


def roofline_ms(row: Record, rates: Mapping[str, float], parameter_bytes: int | None) -> float | None:
    """The least time that the device needs for a model's products, or to read its parameters if that takes longer.

    Args:
        rates: 10^12 operations a second by precision, and 10^9 bytes a second as `copy`.
    """
    if "flops" not in row or row["precision"] not in rates:
        return None
    peak = 1e3 * rates[row["precision"]]
    return roofline.milliseconds(
        row["test"], row["flops"], parameter_bytes or 0, gflops=peak, read_gbytes=rates["copy"]
    )


def share(modes: Modes, rates: Mapping[str, float], parameter_bytes: int | None) -> float | None:
    """What our fastest mode reaches of the roofline; 1 is all of it."""
    ours = fastest(modes, OURS)
    if ours is None:
        return None
    least = roofline_ms(modes[ours[1]], rates, parameter_bytes)
    return None if least is None else least / ours[0]
