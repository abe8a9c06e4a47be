"""The summary of what is known so far, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

from .. import models, report
from . import speedups
from .precision import OURS, ROLES
from .settings import REPLACED

Record = dict[str, Any]

#: Role → heading.
HEADINGS = {
    "eager": "eager",
    "inductor": "Inductor",
    "graphs": "Inductor, CUDA graphs",
    "openxla": "openxla",
    "openxla_tensors": "openxla on torch's tensors",
    "openxla_step": "openxla, whole step",
}


def text(records: Sequence[Record]) -> str:
    """The whole summary; parts that nothing is known of are missing."""
    kinds: dict[str, list[Record]] = {}
    for record in records:
        kinds.setdefault(record["record"], []).append(record)
    rows, dry = kinds.get("row", []), any(record["dry"] for record in kinds.get("settings", []))
    rates = next(iter(kinds.get("rates", [])), {}).get("rates") or {}
    sizes = next(iter(kinds.get("sizes", [])), {}).get("sizes") or {}
    parts = [
        "# A GPU in ten minutes",
        _dry() if dry else "",
        _state(kinds),
        *(report.machine(record) for record in kinds.get("environment", [])),
        _driver(kinds.get("environment", [])),
        _roofline(rates),
        _smoke(kinds.get("smoke", [])),
        *(_models(test, precision, found, rates, sizes) for (test, precision), found in speedups.grouped(rows).items()),
        *map(_profile, kinds.get("profile", [])),
        _left_out(kinds.get("left_out", [])),
        _failures(records),
        _phases(kinds.get("phase", [])),
    ]
    return "\n\n".join(part for part in parts if part)


def _dry() -> str:
    return "**A dry run: nothing here was measured on a GPU.** In place of it stand:\n\n" + "\n".join(
        f"- {line}" for line in REPLACED
    )


def _state(kinds: Mapping[str, Sequence[Record]]) -> str:
    """Whether the program is through."""
    if "end" not in kinds:
        return "The program is not through, or was killed: what follows is what it had until then."
    end = kinds["end"][0]
    return f"The program {end['how']} after {end['seconds']:.0f} s of {60 * end['minutes']:.0f}."


def _driver(environments: Sequence[Record]) -> str:
    return "; ".join(f"{name} {value}" for record in environments for name, value in record.get("gpu", {}).items())


def _roofline(rates: Mapping[str, float]) -> str:
    if not rates:
        return ""
    body = [[name, f"{rate:.3g}", "GB/s" if name == "copy" else "TFLOP/s"] for name, rate in rates.items()]
    return "## Roofline, measured\n\n" + _table(["product or copy", "rate", "unit"], body)


def _smoke(checks: Sequence[Record]) -> str:
    if not checks:
        return ""
    body = [[check["check"], check["failure"] or f"relative error {check['error']:.1e}"] for check in checks]
    return "## Smoke test, against the CPU\n\n" + _table(["check", "result"], body)


def _models(
    test: str,
    precision: str,
    found: Mapping[str, speedups.Modes],
    rates: Mapping[str, float],
    sizes: Mapping[str, int],
) -> str:
    """Eager's milliseconds, the other modes' speedups, and the geometric means of each set of models."""
    shown = [role for role in ROLES if any(role in modes for modes in found.values())]
    ours = [role for role in shown if role in OURS]
    others = [role for role in shown if role not in OURS]
    headers = [
        "model",
        "eager, ms",
        *(HEADINGS[role] for role in shown if role != "eager"),
        *(f"{HEADINGS[role]} / fastest other" for role in ours),
        "share of the roofline",
    ]

    def cells(modes: speedups.Modes) -> list[float | None]:
        over_eager = [speedups.speedup(modes, role, ["eager"]) for role in shown if role != "eager"]
        return [*over_eager, *(speedups.speedup(modes, role, others) for role in ours)]

    body: list[list[str]] = []
    for model, modes in found.items():
        failed = [bool(modes.get(role, {}).get("failure")) for role in shown if role != "eager"]
        failed += [bool(modes.get(role, {}).get("failure")) for role in ours]
        share = speedups.share(modes, rates, sizes.get(model)) if rates else None
        eager = speedups.milliseconds(modes, "eager")
        body.append(
            [
                model,
                "-" if eager is None else f"{eager:.2f}",
                *(_cell(value, lost) for value, lost in zip(cells(modes), failed, strict=True)),
                "-" if share is None else f"{100 * share:.1f} %",
            ]
        )
    for name, known in models.SETS.items():
        chosen = [cells(modes) for model, modes in found.items() if model in known]
        if chosen:
            body.append([f"geomean, {name}", "", *map(speedups.geomean, zip(*chosen, strict=True)), ""])
    title = f"## {test.capitalize()}, {precision}: speedup over eager, and over the fastest of all others"
    return f"{title}\n\n{_table(headers, body)}"


def _cell(value: float | None, failed: bool) -> str:
    return "failed" if failed else "-" if value is None else f"{value:.2f}"


def _profile(record: Record) -> str:
    title = f"## Kernels of {record['model']} {record['test']} {record['precision']}, {record['mode']}, in one run"
    if record["failure"]:
        return f"{title}\n\nfailed: {record['failure']}"
    body = [[f"{each['ms']:.4f}", f"{each['calls']:g}", _short(each["name"])] for each in record["top"]]
    return f"{title}\n\n" + _table(["ms", "calls", "name"], body)


def _short(name: str) -> str:
    """A kernel's name without what would break a table's cell."""
    clean = name.replace("|", "/").replace("\n", " ")
    return clean if len(clean) <= 100 else f"{clean[:97]}..."


def _left_out(records: Sequence[Record]) -> str:
    if not records:
        return ""
    return "## Left out\n\n" + "\n".join(f"- {record['what']}: {record['why']}" for record in records)


def _failures(records: Sequence[Record]) -> str:
    lines = [
        f"- {record['model']} {record['test']} {record['precision']} {record['mode']}: {record['failure']}"
        for record in records
        if record["record"] == "row" and record["failure"]
    ]
    lines += [
        f"- {record.get('what', record['record'])}: {record['failure']}"
        for record in records
        if record["record"] in ("build", "facts", "rates", "sizes", "phase") and record.get("failure")
    ]
    return "## Failures\n\n" + "\n".join(lines) if lines else ""


def _phases(records: Sequence[Record]) -> str:
    body = [[record["what"], f"{record['seconds']:.0f}"] for record in records]
    return "## Where the time went\n\n" + _table(["part", "seconds"], body) if body else ""


def _table(headers: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    return tabulate(body, headers, tablefmt="github", disable_numparse=True)
