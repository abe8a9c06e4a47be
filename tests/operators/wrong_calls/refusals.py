"""Whether wrong calls are refused on xla where the CPU refuses them, and taken where it takes them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

from .. import roads, tolerances
from ..arguments import CPU, EXACT
from ..compare import Comparison, Result, first_line, message
from ..rows import Row
from . import excused, wrong
from .wrong import Wrong

#: How many calls that the CPU takes are compared, and how many with a tensor elsewhere: each may cost a compile.
ACCEPTED, ELSEWHERE = 6, 6

Outcome = dict[str, Any]


def judge(row: Row) -> Outcome:
    """The outcome of all wrong calls of an entry: `refused` is how many the CPU refuses, `same_words` on how many of
    them the messages are the same, `excused` how many differ for a reason that `excused` lists.
    """
    found, expected = _chosen(wrong.cases(row))
    counts = {"refused": 0, "same_words": 0, "excused": 0}
    failures: list[tuple[str, str]] = []
    for case, reference, result in zip(found, expected, _results(found, expected), strict=True):
        if reference.error is not None and case.host is None:
            counts["refused"] += 1
            counts["same_words"] += result.error is not None and message(result.error) == message(reference.error)
        problem = _difference(row, case, reference, result)
        if problem is None:
            continue
        if excused.reason(row.entry, case.kind, problem):
            counts["excused"] += 1
        else:
            failures.append((f"{case.kind}: {problem}", case.summary))
    outcome: Outcome = {"outcome": "fail" if failures else "pass", "samples": len(found), "failed": len(failures)}
    if failures:
        outcome["error"], outcome["sample"] = failures[0][0], failures[0][1][:600]
        outcome["errors"] = [f"{problem}  [{sample[:300]}]" for problem, sample in failures]
    return {**outcome, **counts}


def _chosen(found: Iterable[Wrong]) -> tuple[list[Wrong], list[Result]]:
    """The first `WANTED` calls that the CPU refuses, the first `ACCEPTED` that it takes, and the first `ELSEWHERE` with
    a tensor on another device, with what the CPU gives.
    """
    chosen, expected = [], []
    wanted = {"refused": wrong.WANTED, "accepted": ACCEPTED, "elsewhere": ELSEWHERE}
    for case in found:
        if not wanted["refused"]:
            break
        reference = roads.attempt(case, CPU)
        kind = "elsewhere" if case.host is not None else "accepted" if reference.error is None else "refused"
        if not wanted[kind]:
            continue
        wanted[kind] -= 1
        chosen.append(case)
        expected.append(reference)
    return chosen, expected


def _results(found: Sequence[Wrong], expected: Sequence[Result]) -> list[Result]:
    """What xla makes of them. Each that should fail runs by itself: it must not be another's read that raises."""
    accepted = roads.lazy([case for case, each in zip(found, expected, strict=True) if _is_taken(case, each)])
    return [
        next(accepted) if _is_taken(case, each) else roads.alone(case)
        for case, each in zip(found, expected, strict=True)
    ]


def _is_taken(case: Wrong, reference: Result) -> bool:
    return reference.error is None and case.host is None


def _difference(row: Row, case: Wrong, reference: Result, result: Result) -> str | None:
    if case.host is not None and result.error is not None:
        if reference.error is not None and message(result.error) == message(reference.error):
            return None  # the call is wrong on any device
        return None if _is_of_devices(result.error) else f"refused: {first_line(result.error)}"
    if reference.error is not None:
        if result.error is None:
            return f"accepted: {first_line(reference.error)}"
        if type(result.error) is not type(reference.error):
            return f"raises {first_line(result.error)} instead of {first_line(reference.error)}"
        return None
    if result.error is not None:
        return f"refused: {first_line(result.error)}"
    comparison = Comparison(row.entry, "forward", values=row.entry not in tolerances.UNDEFINED, strides=False)
    problem = comparison.difference(reference, result, functools.partial(roads.attempt, case, EXACT))
    if problem is None and case.host is not None and not case.host_is_number:
        return "accepted: a tensor on the CPU"
    return problem


def _is_of_devices(error: BaseException) -> bool:
    return isinstance(error, RuntimeError | ValueError | IndexError | TypeError) and (
        "device" in str(error).lower() or "cpu" in str(error).lower()
    )
