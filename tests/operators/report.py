"""docs/operators.md: how each operator is served, and what fails and why."""

from __future__ import annotations

import pathlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from . import expected, rows, share
from .compare import shorten
from .rows import Row
from .wrong_calls import excused

PATH = pathlib.Path(__file__).parents[2] / "docs" / "operators.md"

#: Columns of the table.
CLASSES = {
    "float32, float64": ("float32", "float64"),
    "bfloat16, float16": ("bfloat16", "float16"),
    "int64, int32, uint8": ("int64", "int32", "uint8"),
    "bool": ("bool",),
    "complex64": ("complex64",),
}

Outcome = dict[str, Any]


def write(outcomes: dict[Row, Outcome], path: pathlib.Path = PATH) -> str:
    """Writes the document, and gives its totals. What was not run here and is recorded as passing passes."""
    wanted = list(rows.all_rows())
    outcomes = {row: {"outcome": "pass"} for row in share.read()} | outcomes
    totals = "\n".join(_totals(wanted, outcomes))
    path.write_text(_INTRODUCTION.format(torch=torch.__version__.partition("+")[0]) + totals + _body(wanted, outcomes))
    return totals


_INTRODUCTION = """\
# Operators

How xla serves every entry of torch {torch}'s own databases of operator samples (OpInfo), and where it differs from the
CPU. Written by `python -m tests.operators report` from the outcomes of `make test-ops`; do not edit.

- **lowered**: everything that the entry comes down to is one node of the XLA program each.
- **decomposed**: torch's decomposition of it, or of a part of it, into lowered operators.
- **called**: torch's own kernel is called from inside of the XLA program, or on the host (`aten::` in the metrics).
- **fails**: with the dtypes and roads on which it does; why is in the second table.

A row is one entry in one direction and dtype on one road: lazy mode, eager mode, `torch.compile(backend="openxla",
fullgraph=True)` (without `fullgraph` where the size of a result depends on data), and that of plain CPU tensors, which
has columns of its own. In float32 there is one more: a module of the call through `lazy_runtime.jax.function`, jitted
and differentiated by jax, in the last two columns. A row passes if all of its samples give what
the CPU gives: structure, dtypes, sizes, strides (but through jax), values within `tests/operators/tolerances.py`, or
the same error. Rows without an outcome here count as they are recorded in `tests/operators/passing.txt`; "passes" says
that of a cell.

"""


def _totals(wanted: Iterable[Row], outcomes: dict[Row, Outcome]) -> Iterator[str]:
    wanted = list(wanted)

    def passes(row: Row) -> bool:
        return outcomes.get(row, {}).get("outcome") == "pass"

    def count(database: str, takes: Callable[[Row], bool], alone: str = "") -> tuple[list[str], list[str]]:
        """The entries that have such rows, and those of them whose rows all pass.

        Args:
            alone: the road, of those that are counted alone; by default all others.
        """
        found: dict[str, list[Row]] = defaultdict(list)
        for row in wanted:
            if row.database == database and _alone(row) == alone and takes(row):
                found[row.entry].append(row)
        return list(found), [entry for entry, each in found.items() if all(map(passes, each))]

    yield "| of the entries of | pass | of | |"
    yield "|---|---|---|---|"
    for label, database, takes in _TOTALS:
        entries, passing = count(database, takes)
        yield f"| {label} | {len(passing)} | {len(entries)} | {_percent(len(passing), len(entries))} |"
    for label, database, takes in _HOST_TOTALS:
        entries, passing = count(database, takes, "host")
        yield f"| {label}, CPU tensors | {len(passing)} | {len(entries)} | {_percent(len(passing), len(entries))} |"
    for direction in ("forward", "backward"):
        entries, passing = count("op_db", lambda row: row.direction == direction, rows.FUNCTION)  # noqa: B023
        rate = _percent(len(passing), len(entries))
        yield f"| `op_db`, {direction}, float32, through jax | {len(passing)} | {len(entries)} | {rate} |"
    _, forward = count("op_db", _is_first)
    without = [
        entry
        for entry in forward
        if not any(
            outcomes[row].get("called")
            for row in wanted
            if row.database == "op_db" and row.entry == entry and not _alone(row) and _is_first(row)
        )
    ]
    yield (
        f"| `op_db`, forward, float32: of those that pass, without a fallback | {len(without)} | {len(forward)} "
        f"| {_percent(len(without), len(forward))} |"
    )
    run = [row for row in wanted if row in outcomes]
    passing = sum(map(passes, wanted))
    yield f"\n{len(run)} of {len(wanted)} rows were run so far, {passing} passed ({_percent(passing, len(wanted))}).\n"


def _alone(row: Row) -> str:
    """The row's road if its rows are counted apart from those of the roads on xla."""
    return row.road if row.road in ("host", rows.FUNCTION) else ""


def _is_first(row: Row) -> bool:
    return (row.direction, row.dtype) == ("forward", "float32")


def _is_lazy_backward(row: Row) -> bool:
    return (row.direction, row.road) == ("backward", "lazy")


_TOTALS: list[tuple[str, str, Callable[[Row], bool]]] = [
    ("`op_db`, forward, float32, all three roads", "op_db", _is_first),
    ("`op_db`, forward, every dtype, lazy", "op_db", lambda row: (row.direction, row.road) == ("forward", "lazy")),
    ("`op_db`, forward, every dtype, all three roads", "op_db", lambda row: row.direction == "forward"),
    ("`op_db`, backward, float32, lazy", "op_db", lambda row: _is_lazy_backward(row) and row.dtype == "float32"),
    ("`op_db`, backward, every dtype, lazy", "op_db", lambda row: _is_lazy_backward(row)),
    ("`op_db`, backward, every dtype, all three roads", "op_db", lambda row: row.direction == "backward"),
    ("`op_db`, in-place forms, every dtype", "op_db", lambda row: row.direction == "inplace"),
    ("`op_db`, `out=` forms, every dtype", "op_db", lambda row: row.direction == "out"),
    ("`op_db`, `out=` forms in another order of memory", "op_db", lambda row: row.direction == "strided_out"),
    ("`op_db`, errors", "op_db", lambda row: row.direction == "errors"),
    ("`op_db`, wrong calls drawn at random", "op_db", lambda row: row.direction == "wrong"),
    ("`op_db`, integers at both ends of their types", "op_db", lambda row: row.direction == "limits"),
    ("`op_db`, operands in every order of memory", "op_db", lambda row: row.direction == "layouts"),
    ("`foreach_*_op_db`, everything", "foreach", lambda row: True),
    ("`module_db`, forward and backward, float32", "module_db", lambda row: row.dtype == "float32"),
    ("`module_db`, everything", "module_db", lambda row: True),
    ("`optim_db`, float32", "optim_db", lambda row: row.dtype == "float32"),
    ("`optim_db`, everything", "optim_db", lambda row: True),
]


_HOST_TOTALS: list[tuple[str, str, Callable[[Row], bool]]] = [
    ("`op_db`, forward, float32", "op_db", _is_first),
    ("`op_db`, backward, float32", "op_db", lambda row: (row.direction, row.dtype) == ("backward", "float32")),
    ("`module_db`, forward and backward, float32", "module_db", lambda row: row.dtype == "float32"),
]


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""


def _body(wanted: Iterable[Row], outcomes: dict[Row, Outcome]) -> str:
    entries: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in wanted:
        entries[row.database, row.entry].append(row)
    lines = []
    for database in rows.databases():
        lines += [
            f"\n## {database}\n",
            f"| entry | {' | '.join(CLASSES)} | backward | other | CPU tensors | backward | through jax | backward |",
            "|---" * (len(CLASSES) + 7) + "|",
        ]
        for (of, name), found in sorted(entries.items()):
            if of == database:
                alone = {road: [row for row in found if row.road == road] for road in ("host", rows.FUNCTION)}
                found = [row for row in found if not _alone(row)]
                cells = [
                    _served([row for row in found if row.dtype in dtypes and row.direction == "forward"], outcomes)
                    for dtypes in CLASSES.values()
                ]
                cells.append(_passing([row for row in found if row.direction == "backward"], outcomes))
                others = [row for row in found if row.direction not in ("forward", "backward")]
                cells.append(_passing(others, outcomes))
                for each in alone.values():
                    cells.append(_served([row for row in each if row.direction == "forward"], outcomes))
                    cells.append(_passing([row for row in each if row.direction == "backward"], outcomes))
                lines.append(f"| `{name}` | {' | '.join(cells)} |")
    lines += ["\n## What fails, and why\n", *_reasons(wanted, outcomes)]
    lines += ["\n## Where torch is wrong\n", *_wrong()]
    lines += ["\n## Wrong calls that are judged differently\n", *_excused()]
    lines += ["\n## Where a compiled graph may break\n", *_breaks(wanted, outcomes)]
    return "\n".join(lines) + "\n"


def _served(found: list[Row], outcomes: dict[Row, Outcome]) -> str:
    """How the rows of one cell are served: the least direct way of them."""
    failing = _failing(found, outcomes)
    if failing or not found:
        return failing
    routes = {outcomes[row].get("route") for row in found if row in outcomes}
    known = "passes" if None in routes else "not run"
    return next((route for route in ("called", "decomposed", "lowered") if route in routes), known)


def _passing(found: list[Row], outcomes: dict[Row, Outcome]) -> str:
    if not found:
        return ""
    return _failing(found, outcomes) or ("passes" if any(row in outcomes for row in found) else "not run")


def _failing(found: list[Row], outcomes: dict[Row, Outcome]) -> str:
    failing = [row for row in found if outcomes.get(row, {}).get("outcome") == "fail"]
    if not failing:
        return ""
    if len(failing) == len([row for row in found if row in outcomes]):
        return "fails"
    parts = {
        name: dict.fromkeys(getattr(row, name) for row in failing)
        for name in ("direction", "dtype", "road")
        if {getattr(row, name) for row in failing} != {getattr(row, name) for row in found}
    }
    return "fails: " + "; ".join(", ".join(part) for part in parts.values())


def _reasons(wanted: Iterable[Row], outcomes: dict[Row, Outcome]) -> Iterator[str]:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in wanted:
        outcome = outcomes.get(row, {})
        if outcome.get("outcome") == "fail":
            why = expected.reason(row)
            groups[why or f"*not explained yet:* {shorten(outcome['error'])}"].append(row)
    yield "| why | rows | of |"
    yield "|---|---|---|"
    for why, found in sorted(groups.items(), key=lambda item: (item[0].startswith("*"), -len(item[1]))):
        names = ", ".join(f"`{name}`" for name in sorted({row.entry for row in found}))
        yield f"| {_cell(why)} | {len(found)} | {names} |"


def _wrong() -> Iterator[str]:
    yield "Torch's own kernels for the CPU are wrong here: a difference from eager is torch's. Each formula has a test."
    yield ""
    for operator, how in expected.TORCH_IS_WRONG.items():
        yield f"- `{operator}`: {how}"


def _excused() -> Iterator[str]:
    yield "Each operator gets up to 20 calls that the CPU refuses, drawn at random among samples with one change"
    yield "(dtypes, sizes, numbers, arguments of other kinds, indices, values, devices), and some that it takes."
    yield f"CI runs the calls of one operator in {share.ONE_WRONG_OF}, always the same ones; `make test-ops` runs all."
    yield "These differ:"
    yield "\n| why | of | change | difference |"
    yield "|---|---|---|---|"
    for each in excused.EXCUSED:
        patterns = map(_code, (each.entries, each.kinds, each.problems))
        yield f"| {_cell(each.reason)} | {' | '.join(patterns)} |"


def _code(pattern: str) -> str:
    """A regular expression; nothing for one that takes all."""
    return f"`{_cell(pattern)}`" if pattern not in ("", ".*") else ""


def _breaks(wanted: Iterable[Row], outcomes: dict[Row, Outcome]) -> Iterator[str]:
    groups: dict[str, set[str]] = defaultdict(set)
    for row in wanted:
        why = outcomes.get(row, {}).get("breaks")
        if why is not None:
            groups[_cell(shorten(why))].add(row.entry)
    yield "Because a size depends on data, or because torch cannot have the call in one graph on the CPU either."
    yield "\n| why | of |"
    yield "|---|---|"
    for why, names in sorted(groups.items(), key=lambda item: -len(item[1])):
        yield f"| {why} | {', '.join(f'`{name}`' for name in sorted(names))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("`", "'")
