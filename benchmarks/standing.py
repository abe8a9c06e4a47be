"""How this package stands against what a user would pick in its place: geometric means, and the worst model."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from tabulate import tabulate

from .modes import FLOAT32, MODES, OURS

Rows = dict[str, dict[str, dict[str, Any]]]  # model → mode → row

#: What a user could pick; what is written in jax by hand is not the user's model.
OTHERS = tuple(mode for mode in FLOAT32 if mode not in OURS and not MODES[mode].by_hand)
TORCH_XLA = ("torch_xla", "torch_xla_lazy")


class Comparison(NamedTuple):
    """The fastest of some modes over one of ours.

    Attributes:
        name: of the modes together.
        modes: the fastest of them counts, model by model.
        subject: ours.
        geomean, worst: what is asked for at least, over all models and of each; None where nothing is.
    """

    name: str
    modes: Sequence[str]
    subject: str
    geomean: float | None = None
    worst: float | None = None


def comparisons(test: str, batch_size: int | None) -> list[Comparison]:
    """What is compared in a test; `batch_size` is None for the models' default."""
    if test == "step":
        return [
            Comparison("eager", ["eager"], "openxla_step", 1.2),
            Comparison("the fastest other", OTHERS, "openxla_step"),
            Comparison("lazy", ["lazy"], "openxla_step"),
            Comparison("torch_xla", TORCH_XLA, "openxla_step"),
        ]
    if test == "training":
        usual = ["eager", "eager_channels_last", "inductor"]
        return [
            Comparison("the fastest of eager, channels_last, inductor", usual, "openxla", 1.1),
            Comparison("inductor", ["inductor"], "openxla"),
            Comparison("lazy", ["lazy"], "openxla"),
            Comparison("jax by hand", ["jax"], "openxla"),
            Comparison("torch_xla", TORCH_XLA, "openxla"),
        ]
    alone = batch_size == 1
    return [
        Comparison("inductor", ["inductor"], "openxla", 1.2 if alone else 1.3),
        Comparison("the fastest other", OTHERS, "openxla", *((None, None) if alone else (1.0, 0.8))),
        Comparison("lazy", ["lazy"], "openxla", *((None, None) if alone else (1.0, 0.97))),
        Comparison("jax by hand", ["jax"], "openxla"),
        Comparison("torch_xla", TORCH_XLA, "openxla", None if alone else 4.0),
    ]


def table(test: str, batch_size: int | None, rows: Rows) -> str:
    """A line for each comparison that there are times for; empty where there are none."""
    body = [line for each in comparisons(test, batch_size) if (line := _line(each, rows))]
    headers = ["openxla's speedup over" if test != "step" else "openxla_step's speedup over"]
    headers += ["geomean", "asked for", "worst model", "asked for"]
    align = ("left", *["right"] * 4)
    return tabulate(body, headers, tablefmt="github", disable_numparse=True, colalign=align) if body else ""


def _line(comparison: Comparison, rows: Rows) -> list[str]:
    ratios = {}
    for model, modes in rows.items():
        ours = modes.get(comparison.subject, {}).get("median_ms")
        theirs = [modes[mode]["median_ms"] for mode in comparison.modes if "median_ms" in modes.get(mode, {})]
        if ours is not None and theirs:
            ratios[model] = min(theirs) / ours
    if not ratios:
        return []
    mean, worst = statistics.geometric_mean(ratios.values()), min(ratios, key=lambda model: ratios[model])
    counted = "" if len(ratios) == len(rows) else f" (of {len(ratios)})"
    return [
        comparison.name,
        f"{mean:.2f}{counted}",
        _asked(mean, comparison.geomean),
        f"{ratios[worst]:.2f} ({worst})",
        _asked(ratios[worst], comparison.worst),
    ]


def _asked(ratio: float, least: float | None) -> str:
    return "" if least is None else f"{least:.2f}, {'met' if ratio >= least else 'missed'}"
