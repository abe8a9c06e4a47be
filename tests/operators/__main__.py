"""The command line; `python -m tests.operators --help`."""

from __future__ import annotations

import argparse
import collections
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from . import expected, results, rows, share
from .compare import shorten
from .rows import Filter, Row


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    os.environ.setdefault("XLA_PERSISTENT_CACHE_PATH", "0")  # no run depends on earlier ones
    wanted = Filter(**{name: tuple(getattr(arguments, name, None) or ()) for name in Filter.__dataclass_fields__})
    return arguments.command(arguments, wanted)


def _run(arguments: argparse.Namespace, wanted: Filter) -> int:
    from . import run

    chosen = _chosen(wanted)
    if arguments.failed:
        known = results.load()
        chosen = [row for row in chosen if known.get(row, {}).get("outcome") == "fail"]
    if arguments.new:
        recorded = set(share.read())
        chosen = [row for row in chosen if row not in recorded]
    counts: collections.Counter[str] = collections.Counter()
    surprises: list[str] = []
    start = shown = time.monotonic()
    print(f"{len(chosen)} rows", flush=True)

    def report(outcome: dict[str, Any]) -> None:
        nonlocal shown
        results.append(outcome)
        counts[outcome["outcome"]] += 1
        if (outcome["outcome"] == "fail") != (expected.reason(results.row_of(outcome)) is not None):
            surprises.append(_line(outcome))
        if arguments.verbose:
            print(_line(outcome), flush=True)
        elif time.monotonic() - shown > 30:
            shown = time.monotonic()
            print(f"{counts.total()} of {len(chosen)} in {shown - start:.0f} s: {dict(counts)}", flush=True)

    run.run(chosen, report, samples=arguments.samples, workers=arguments.workers, timeout=arguments.timeout)
    print(f"{counts['pass']} of {counts.total()} rows pass, {time.monotonic() - start:.0f} s")
    print(f"{len(surprises)} rows fail without a reason in `expected`, or pass although they have one there")
    return 1 if surprises else 0


def _chosen(wanted: Filter) -> list[Row]:
    """The rows that the options name.

    Raises:
        SystemExit: there are none.
    """
    chosen = rows.select(wanted)
    if not chosen:
        parts = [part.strip(".*") for part in wanted.only]
        similar = sorted({row.entry for row in rows.all_rows() for part in parts if part and part in row.entry})
        hint = f": {', '.join(similar[:8])}" if similar else ""
        sys.exit(f"no row has these options; --only is a regular expression for the whole name of an entry{hint}")
    return chosen


def _line(outcome: dict[str, Any]) -> str:
    row = results.row_of(outcome)
    rest = f"{outcome['failed']} of {outcome['samples']}: {outcome['error']}" if "error" in outcome else ""
    return f"{outcome['outcome']}  {row}  {outcome.get('route', '')} {outcome.get('seconds', '')}s  {rest}"


def _failures(arguments: argparse.Namespace, wanted: Filter) -> int:
    """Failing rows by what they say, numbers apart."""
    outcomes = [each for row, each in results.load().items() if wanted.takes(row)]
    failed = [each for each in outcomes if each["outcome"] == "fail"]
    if arguments.entries:
        for outcome in failed:
            print(f"{_line(outcome)}\n    {outcome.get('sample', '')}")
    else:
        groups: dict[str, list[Row]] = collections.defaultdict(list)
        for outcome in failed:
            groups[shorten(outcome["error"])].append(results.row_of(outcome))
        for kind, found in sorted(groups.items(), key=lambda item: -len(item[1])):
            entries = sorted({row.entry for row in found})
            print(f"{len(found):5}  {kind}\n         {', '.join(entries)}")
    print(f"{len(failed)} of {len(outcomes)} rows fail")
    return 0


def _report(arguments: argparse.Namespace, wanted: Filter) -> int:
    from . import report

    print(report.write(results.load()))
    return 0


def _pass(arguments: argparse.Namespace, wanted: Filter) -> int:
    """Rows that were not run again keep their line: a run of a part must not drop the rest."""
    known = {row: outcome for row, outcome in results.load().items() if wanted.takes(row)}
    before = set(share.read()) if share.PATH.exists() else set()
    passing = {row for row, outcome in known.items() if outcome["outcome"] == "pass"}
    share.write(passing | {row for row in before if row not in known})
    print(f"{len(passing)} rows pass, {len(before - passing & set(known))} that passed no longer do")
    return 0


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--only", action="append", metavar="REGEX", help="entries, e.g. 'linalg.*'")
    shared.add_argument("--database", action="append", choices=("op_db", "foreach", "module_db", "optim_db"))
    shared.add_argument("--direction", action="append", choices=rows.DIRECTIONS)
    shared.add_argument("--dtype", action="append", choices=(*rows.DTYPES, "int8", "int16"))
    shared.add_argument("--road", action="append", choices=(*rows.ROADS, rows.FUNCTION))
    parser = argparse.ArgumentParser(prog="python -m tests.operators", description=__doc__)
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", parents=[shared], help="judge rows and store the outcomes")
    run.add_argument(
        "--samples", type=int, help="of each row, spread over all; 0 for all (default: 8 lazy and function, else 4)"
    )
    run.add_argument("--workers", type=int, default=2)
    run.add_argument("--timeout", type=float, default=120.0, help="seconds for one row (default: 120)")
    run.add_argument("--failed", action="store_true", help="only rows that failed the last time")
    run.add_argument("--new", action="store_true", help="only rows that are not in passing.txt")
    run.add_argument("-v", "--verbose", action="store_true", help="a line for each row")
    run.set_defaults(command=_run)
    failures = commands.add_parser("failures", parents=[shared], help="stored rows that fail, grouped by error")
    failures.add_argument("--entries", action="store_true", help="one by one, with the first sample that failed")
    failures.set_defaults(command=_failures)
    report = commands.add_parser("report", help="write docs/operators.md from the stored outcomes")
    report.set_defaults(command=_report)
    passing = commands.add_parser("pass", parents=[shared], help="write passing.txt from the stored outcomes")
    passing.set_defaults(command=_pass)
    return parser


if __name__ == "__main__":
    sys.exit(main())
