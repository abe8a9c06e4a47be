"""Tables from result records, in the form of PyTorch/XLA's documentation."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from . import models, roofline, standing
from .modes import MODES, TESTS
from .training_step import SETTLING

Record = dict[str, Any]
Rows = dict[str, dict[str, Record]]  # model → mode → row

SUBJECTS = ("openxla", "openxla_step", "openxla_bfloat16", "cuda_openxla")  # the modes whose speedups are shown


def tables(records: Sequence[Record]) -> str:
    """All tables that the records have data for, as Markdown."""
    environments = [record for record in records if record["record"] == "environment"]
    parts = [machine(record) for record in environments]
    peaks = next(
        ((each["gemm_gflops"], each.get("read_gbytes")) for each in environments if "gemm_gflops" in each), None
    )
    for today, test, batch_size in itertools.product((False, True), TESTS, _batch_sizes(records)):
        rows = _rows(records, test, batch_size)
        rows = {model: modes for model, modes in rows.items() if (model in models.TODAY) is today}
        if not rows:
            continue
        if any("median_ms" in row for modes in rows.values() for row in modes.values()):
            parts += [speedups(test, rows, subject) for subject in SUBJECTS]
            parts.append(times(test, rows, peaks))
            parts.append(standing.table(test, batch_size, rows) if peaks else "")
            counted = _counted(test, rows)
            parts += [work(test, counted), host_times(test, counted)] if counted else []
            parts.append(first_calls(test, rows))
        else:
            parts.append(errors(test, rows))
        parts.append(_failures(rows))
    return "\n\n".join(part for part in parts if part)


#: Where a page has its tables.
MARKS = ("<!-- results -->\n", "<!-- /results -->\n")


def write_into(page: Path, records: Sequence[Record]) -> None:
    """Puts the tables into a Markdown page, in place of what stands between the marks.

    Raises:
        ValueError: the page does not have the two marks.
    """
    before, begin, rest = page.read_text().partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not begin or not end:
        raise ValueError(
            f"{page} has no lines {MARKS[0].strip()} and {MARKS[1].strip()} for the tables to stand between"
        )
    page.write_text(f"{before}{begin}{tables(records)}\n{end}{after}")


def machine(environment: Record) -> str:
    """One sentence on the machine and the versions."""
    versions, found = environment["versions"], environment["machine"]
    flags = " ".join(f"{name}={value}" for name, value in environment["flags"].items())
    names = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    sentence = (
        f"{found['gpu'] + ', ' if 'gpu' in found else ''}{found['cpu']}, {found['cores']} cores, "
        f"{found['memory_gib']} GiB, {found['system']}; {names}; "
        f"flags: {flags or 'none'}"
    )
    if "gemm_gflops" in environment:
        commit = environment.get("commit") or "unknown"
        sentence += f"; commit {commit}; matrix products at {environment['gemm_gflops']:.0f} GFLOP/s"
        if "read_gbytes" in environment:
            sentence += f", memory read at {environment['read_gbytes']:.1f} GB/s"
    if "torch_xla" in environment:
        theirs = ", ".join(f"{name} {version}" for name, version in environment["torch_xla"].items() if version)
        sentence += f"; the modes torch_xla and torch_xla_lazy with {theirs}"
    return sentence


def speedups(test: str, rows: Rows, subject: str) -> str:
    """How many times as fast one mode is as the others: PyTorch/XLA's table, then the other modes' columns. Empty where
    there is nothing to compare.
    """
    others = [mode for mode in _modes(rows) if mode != subject and not (subject == "openxla" and mode in SUBJECTS)]
    others.sort(key=lambda mode: mode != "lazy")  # PyTorch/XLA's column first
    if subject not in _modes(rows) or not others:
        return ""
    body = [
        [model, *(_ratio(modes, mode, subject) for mode in others), _bounds(modes)] for model, modes in rows.items()
    ]
    means: list[Any] = ["geomean"]
    for column in range(1, 1 + len(others)):
        numbers = [line[column] for line in body if isinstance(line[column], float)]
        mean = f"{statistics.geometric_mean(numbers):.2f}" if numbers else "-"
        means.append(mean if len(numbers) == len(body) else f"{mean} (of {len(numbers)})")
    headers = ["model", *(f"over {mode}" for mode in others), "relative error at most"]
    return _table(f"{_heading(test, rows)}: speedup of {subject}", headers, [*body, [*means, ""]])


def times(test: str, rows: Rows, peaks: tuple[float, float | None] | None = None) -> str:
    """Medians with their spread.

    Args:
        peaks: the machine's 10^9 operations a second in matrix products, and 10^9 bytes a second that it reads, if
            that was measured, for a column of what the model would take at the better of both.
    """

    def cell(row: Record) -> str:
        low, high = row["quartiles_ms"]
        recompiles = f", compiles {row['recompiles']} times" if row["recompiles"] else ""
        return f"{row['median_ms']:.1f} ({high - low:.1f}{recompiles})"

    title = f"{_heading(test, rows)}: milliseconds, median (interquartile range)"
    more = {"rounds": _rounds, "relative error at most": _bounds}
    if peaks:
        more = {"roofline": lambda modes: _roofline(test, modes, *peaks), **more}
    return _by_mode(title, rows, cell, more)


def work(test: str, rows: Rows) -> str:
    """What XLA executed and compiled in a step."""

    def cell(row: Record) -> str:
        return f"{row['executions_per_step']:.3g}, {row['compiles_per_step']:.3g}"

    return _by_mode(f"{_heading(test, rows)}: executions, compiles per step", rows, cell, {})


def host_times(test: str, rows: Rows) -> str:
    """How long the step function keeps the user's thread, and what share that is of the lazy trace's time."""

    def cell(row: Record) -> str:
        low, high = row["host_quartiles_ms"]
        return f"{row['host_ms']:.2f} ({high - low:.2f})"

    def share(mode: str) -> Callable[[dict[str, Record]], str]:
        def column(modes: dict[str, Record]) -> str:
            found = [modes[each]["host_ms"] for each in (mode, "lazy") if "host_ms" in modes.get(each, {})]
            return f"{found[0] / found[1]:.3f}" if len(found) == 2 else "-"

        return column

    shares = {f"{mode} / lazy": share(mode) for mode in SUBJECTS if {mode, "lazy"} <= set(_modes(rows))}
    title = f"{_heading(test, rows)}: milliseconds until the step function returns, median (interquartile range)"
    return _by_mode(title, rows, cell, shares)


def first_calls(test: str, rows: Rows) -> str:
    """What the first call took: tracing, compiling, and one run. For steps, what the first ones took."""
    if test == "step":

        def steps(row: Record) -> str:
            compiles = row["first_call_compiles"] + row["settling_compiles"]
            counted = f" ({compiles})" if MODES[row["mode"]].device == "xla" else ""
            return f"{row['first_call_s'] + row['settling_s']:.1f}{counted}"

        return _by_mode(
            f"{_heading(test, rows)}: seconds of the first {1 + SETTLING} steps (compiles)", rows, steps, {}
        )

    def cell(row: Record) -> str:
        reused = MODES[row["mode"]].device == "xla" and row["first_call_compiles"] == 0
        return f"{row['first_call_s']:.1f}" + (" (compiled before)" if reused else "")

    return _by_mode(f"{_heading(test, rows)}: seconds of the first call", rows, cell, {})


def errors(test: str, rows: Rows) -> str:
    """How far each mode is from eager, for results without times."""

    def cell(row: Record) -> str:
        return "; ".join(f"{check['error']:.1e}" for check in row["checks"])

    whats = list(dict.fromkeys(what for modes in rows.values() for what in _checks(modes)))
    title = f"{_heading(test, rows)}: relative error from eager ({'; '.join(whats) or 'none checked'})"
    return _by_mode(title, rows, cell, {"at most": _bounds})


def row_line(row: Record) -> str:
    """One line on a row that has just been finished."""
    name = f"{row['model']} {row['test']} {row['mode']}: "
    if row["failure"] is not None:
        return f"{name}failed: {row['failure']}"
    checks = ", ".join(f"{check['what']} within {check['error']:.1e}" for check in row["checks"])
    if "median_ms" not in row:
        return name + checks
    work = ""
    if "host_ms" in row:
        work = f" (host {row['host_ms']:.2f} ms, {row['executions_per_step']:.3g} executions)"
    return f"{name}{row['median_ms']:.1f} ms{work}, first call {row['first_call_s']:.1f} s, {checks}"


def _batch_sizes(records: Sequence[Record]) -> list[int | None]:
    """Those that were asked for, after None for the models' defaults."""
    found = {record.get("batch_size") for record in records}
    return [None, *sorted(size for size in found if size is not None)]


def _rows(records: Sequence[Record], test: str, batch_size: int | None) -> Rows:
    rows: Rows = {}
    for record in records:
        if record["record"] == "row" and (record["test"], record.get("batch_size")) == (test, batch_size):
            rows.setdefault(record["model"], {})[record["mode"]] = record
    return rows


def _heading(test: str, rows: Rows) -> str:
    """The test, the set of models where it is not the published one, the batch size where it is not the models' own,
    and of steps how many are run before one is waited for.
    """
    all_rows = [row for modes in rows.values() for row in modes.values()]
    batch_size, loop = all_rows[0].get("batch_size"), max(row.get("loop", 1) for row in all_rows)
    return (
        test.capitalize()
        + (", models of today" if models.TODAY.keys() >= rows.keys() else "")
        + (f", batch {batch_size}" if batch_size else "")
        + (f", loops of {loop}" if loop > 1 else "")
    )


def _counted(test: str, rows: Rows) -> Rows:
    """The rows whose work is counted: steps on xla."""
    if test != "step":
        return {}
    kept = {model: [mode for mode in modes if MODES[mode].device == "xla"] for model, modes in rows.items()}
    return {model: {mode: rows[model][mode] for mode in modes} for model, modes in kept.items() if modes}


def _modes(rows: Rows) -> list[str]:
    """The modes that ran, in their usual order."""
    return [mode for mode in MODES if any(mode in modes for modes in rows.values())]


def _by_mode(
    title: str, rows: Rows, cell: Callable[[Record], str], more: dict[str, Callable[[dict[str, Record]], str]]
) -> str:
    """A table with a column per mode; a failure stands in place of its cell."""
    shown = _modes(rows)
    body = [
        [
            model,
            *(
                ("-" if mode not in modes else "failed" if modes[mode]["failure"] else cell(modes[mode]))
                for mode in shown
            ),
            *(column(modes) for column in more.values()),
        ]
        for model, modes in rows.items()
    ]
    return _table(title, ["model", *shown, *more], body)


def _ratio(modes: dict[str, Record], numerator: str, denominator: str) -> float | str:
    found = [modes.get(numerator), modes.get(denominator)]
    if any(row is not None and row["failure"] for row in found):
        return "failed"
    medians = [row["median_ms"] for row in found if row is not None and "median_ms" in row]
    return medians[0] / medians[1] if len(medians) == 2 else "-"


def _checks(modes: dict[str, Record]) -> dict[str, float]:
    """What was compared with eager → its bound."""
    return {check["what"]: check["bound"] for row in modes.values() for check in row["checks"]}


def _bounds(modes: dict[str, Record]) -> str:
    return ", ".join(f"{bound:.1e} {what}" for what, bound in _checks(modes).items())


def _roofline(test: str, modes: dict[str, Record], gflops: float, read_gbytes: float | None) -> str:
    row = next((row for row in modes.values() if "flops" in row), None)
    if row is None:
        return "-"
    weights = row.get("weight_bytes", 0)
    return f"{roofline.milliseconds(test, row['flops'], weights, gflops=gflops, read_gbytes=read_gbytes):.1f}"


def _rounds(modes: dict[str, Record]) -> str:
    return str(max((len(row.get("times_ms", ())) for row in modes.values()), default=0))


def _failures(rows: Rows) -> str:
    return "\n".join(
        f"{model} {row['test']} {mode} failed: {row['failure']}"
        for model, modes in rows.items()
        for mode, row in modes.items()
        if row["failure"]
    )


def _table(title: str, headers: Sequence[str], body: Sequence[Sequence[Any]]) -> str:
    cells = [[f"{cell:.2f}" if isinstance(cell, float) else cell for cell in line] for line in body]
    align = ("left", *["right"] * (len(headers) - 1))
    return f"### {title}\n\n{tabulate(cells, headers, tablefmt='github', disable_numparse=True, colalign=align)}"
