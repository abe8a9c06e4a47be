"""The regression gate: whether a speed fell by more than noise, between two results or two commits.

Each model is judged by itself and each test's geomean too. A fall counts where the whole interval that noise leaves
open (`changes.py`) lies below what is allowed. Two commits are measured in turns, by one pair of processes after
another (sittings) while a fall is in doubt, for two processes of one commit differ by several percent.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from tabulate import tabulate

from ..modes import MODES
from . import changes
from .changes import Change, Series

#: Shares of a speed. Between two runs at different times more changes than within one.
ALLOWED, ALLOWED_APART, ALLOWED_GEOMEAN = 0.05, 0.07, 0.04

#: Of a model, while it is in doubt.
MOST_SITTINGS = 5

#: What has to be alike in two rows for their speedups to be compared.
SETTINGS = ("input_shape", "loop", "torch_threads", "xla_device")

Record = dict[str, Any]
Records = Sequence[Record]


class GateError(ValueError):
    """Two results that cannot be compared; the message says why, in one line."""


class Allowed(NamedTuple):
    """By what share a speed may fall.

    Attributes:
        model: one model's; `ALLOWED` or `ALLOWED_APART` if None.
        geomean: a test's geometric mean over all models.
        models: exceptions, by name.
    """

    model: float | None = None
    geomean: float = ALLOWED_GEOMEAN
    models: Mapping[str, float] = {}

    def of(self, model: str, together: bool) -> float:
        """For one model, measured with its baseline in turns or apart from it."""
        usual = ALLOWED if together else ALLOWED_APART
        return self.models.get(model, usual if self.model is None else self.model)


class Key(NamedTuple):
    """What is compared: a row's name."""

    test: str
    mode: str
    model: str


class Finding(NamedTuple):
    """What is known of one row, or of a geomean, whose model is `"geomean"`.

    Attributes:
        before, after: the speedups over eager, or milliseconds; None for a geomean and where there are no times.
        change: None where there are no times on both sides.
        failure: why the row has no times afterwards.
        sittings: in how many it was measured in turns; 0 between two results.
    """

    key: Key
    before: float | None
    after: float | None
    change: Change | None
    allowed: float
    failure: str | None = None
    sittings: int = 0

    @property
    def fell(self) -> bool:
        """Whether this is a regression."""
        if self.failure is not None or self.change is None:
            return self.failure is not None
        return self.change.below(self.allowed)

    @property
    def in_doubt(self) -> bool:
        """Whether it looks like a fall, which may be noise."""
        return self.change is not None and self.change.ratio < 1 - self.allowed < self.change.high

    @property
    def verdict(self) -> str:
        """In a word or two."""
        if self.failure is not None:
            return "**fails now**"
        if self.change is None:
            return "failed before"
        if self.fell or self.change.above(self.allowed):
            return "**fell**" if self.fell else "rose"
        unclear = self.in_doubt if self.sittings else self.change.vague(self.allowed)
        return "too noisy to tell" if unclear else ""


def check_comparable(before: Records, after: Records) -> list[str]:
    """Holds two result files' environments against each other; returns what differs and is no obstacle.

    Raises:
        GateError: they are of different kinds of machine or were made with different flags.
    """
    old, new = _environment(before, "baseline"), _environment(after, "results")
    for field in ("cpu", "cores", "system"):  # not the memory: machines of a kind differ by what their kernels keep
        if old["machine"].get(field) != new["machine"].get(field):
            raise GateError(
                f"the baseline counts only on the kind of machine that it names: its {field} is "
                f"{old['machine'].get(field)!r}, the results' {new['machine'].get(field)!r}; "
                "`gate --against REV` needs no baseline"
            )
    if old["flags"] != new["flags"]:
        raise GateError(f"the flags differ: {old['flags'] or 'none'} in the baseline, {new['flags'] or 'none'} now")
    was, now = old["versions"], new["versions"]
    return [
        f"{name} was {was.get(name)} and is {now.get(name)}"
        for name in sorted({*was, *now})
        if was.get(name) != now.get(name)
    ]


def judge(
    before: Records,
    after: Records,
    allowed: Allowed | None = None,
) -> list[Finding]:
    """Compares all rows of the baseline with the results'; a test's and mode's geomean comes after its models.

    Raises:
        GateError: rows are missing, were measured with other settings or in too few rounds, or there are none.
    """
    allowed = Allowed() if allowed is None else allowed
    old, new = _rows(before), _rows(after)
    keys = _keys(old, new, [mode for mode in MODES if MODES[mode].device == "xla"])
    findings = _with_geomeans([_finding(key, old, new, allowed) for key in keys], allowed)
    if all(each.change is None and each.failure is None for each in findings):
        raise GateError("there is nothing to compare: every row of the baseline failed")
    return findings


def judge_turns(
    sittings: Sequence[tuple[Records, Records]], allowed: Allowed | None = None, modes: Collection[str] = ("openxla",)
) -> list[Finding]:
    """Compares the times of two commits that took turns; a test's and mode's geomean comes after its models.

    Args:
        sittings: the records before and after, each measured by a pair of processes of its own. The first has every
            model, others those that were in doubt.
        modes: those that are judged; eager, which is not timed, is not.

    Raises:
        GateError: rows are missing or were measured in too few rounds, or there are none.
    """
    allowed = Allowed() if allowed is None else allowed
    rows = [(_rows(before), _rows(after)) for before, after in sittings]
    keys = _keys(*rows[0], [mode for mode in modes if mode != "eager"])
    return _with_geomeans([_finding_in_turns(key, rows, allowed, seed) for seed, key in enumerate(keys)], allowed)


def _keys(old: Mapping[Key, Record], new: Mapping[Key, Record], modes: Collection[str]) -> list[Key]:
    """The rows to be compared, those of a test and mode together."""
    keys = sorted((key for key in old if key.mode in modes), key=lambda key: (key.test, key.mode))
    missing = [" ".join((key.model, key.test, key.mode)) for key in keys if key not in new]
    if missing:
        raise GateError(f"the results lack {', '.join(missing)}, which the baseline has")
    if not keys:
        raise GateError(f"the baseline has no row of the modes {', '.join(modes) or 'but eager'}")
    return keys


def _with_geomeans(found: Sequence[Finding], allowed: Allowed) -> list[Finding]:
    findings: list[Finding] = []
    for group in dict.fromkeys(each.key[:2] for each in found):
        models = [each for each in found if each.key[:2] == group]
        findings += models
        moved = [each.change for each in models if each.change is not None]
        if len(moved) > 1:
            sittings = min(each.sittings for each in models if each.change is not None)
            mean = changes.mean(moved)
            findings.append(Finding(Key(*group, "geomean"), None, None, mean, allowed.geomean, sittings=sittings))
    return findings


def in_doubt(findings: Sequence[Finding]) -> set[str]:
    """The models to be measured in another sitting."""
    again = [each for each in findings if each.in_doubt and 0 < each.sittings < MOST_SITTINGS]
    groups = {each.key[:2] for each in again if each.key.model == "geomean"}
    again += [each for each in findings if each.key[:2] in groups and each.change is not None]
    return {each.key.model for each in again} - {"geomean"}


def markdown(findings: Sequence[Finding], notes: Sequence[str] = ()) -> str:
    """The verdict, a table of what moved, and the notes."""
    fell = [each for each in findings if each.fell]
    names = ", ".join(f"{each.key.model} ({each.key.test}, {each.key.mode})" for each in fell)
    title = f"## Performance: {f'regression of {names}' if fell else 'no regression'}"
    in_turns = any(each.sittings for each in findings)
    measure = "ms" if in_turns else "speedup"
    headers = ["test", "mode", "model", f"{measure} before", "after", "speed", "at least", "at most", "allowed", ""]
    body = [
        [
            *each.key,
            _speedup(each.before),
            _speedup(each.after),
            *_moved(each.change),
            f"-{each.allowed:.0%}",
            each.verdict,
        ]
        for each in findings
    ]
    align = ("left",) * 3 + ("right",) * 6 + ("left",)
    table = tabulate(body, headers, tablefmt="github", disable_numparse=True, colalign=align)
    failures = [f"{' '.join(each.key)} fails: {each.failure}" for each in findings if each.failure]
    bounds = f"Bounds hold with {changes.CONFIDENCE:.0%} each, by bootstrap"
    if in_turns:
        bounds += f" and by how much two processes of one commit differ ({changes.PROCESS:.1%})."
    else:
        fastest = f"{changes.QUANTILE:.0%}"
        bounds = f"Speedups are over eager in the same rounds, each by its fastest {fastest}. {bounds}."
    return "\n\n".join([title, table, bounds, *failures, *notes])


def _speedup(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _moved(change: Change | None) -> list[str]:
    if change is None:
        return ["-"] * 3
    return [f"{ratio - 1:+.1%}" for ratio in (change.ratio, change.low, change.high)]


def _finding_in_turns(
    key: Key, rows: Sequence[tuple[Mapping[Key, Record], Mapping[Key, Record]]], allowed: Allowed, seed: int
) -> Finding:
    bound = allowed.of(key.model, True)
    pairs = [(before[key], after[key]) for before, after in rows if key in before and key in after]
    for pair in pairs:
        failed = _failed(key, *pair, bound)
        if failed is not None:
            return failed
    try:
        moved = changes.mean(
            [
                changes.change_in_turns(before["times_ms"], after["times_ms"], (seed, sitting))
                for sitting, (before, after) in enumerate(pairs)
            ]
        )
    except ValueError as error:
        raise GateError(f"{' '.join((key.model, key.test, key.mode))}: {error}; give it a larger --budget") from error
    before, after = (statistics.median([each["median_ms"] for each in side]) for side in zip(*pairs, strict=True))
    return Finding(key, before, after, moved, bound, sittings=len(pairs))


def _failed(key: Key, before: Record, after: Record, bound: float) -> Finding | None:
    """The finding where one of two rows has no times."""
    if before["failure"] is not None:
        return Finding(key, None, None, None, bound)
    if after["failure"] is not None:
        return Finding(key, None, None, None, bound, after["failure"])
    return None


def _finding(key: Key, old: dict[Key, Record], new: dict[Key, Record], allowed: Allowed) -> Finding:
    before, after = old[key], new[key]
    bound = allowed.of(key.model, False)
    failed = _failed(key, before, after, bound)
    if failed is not None:
        return failed
    name = " ".join((key.model, key.test, key.mode))
    for setting in SETTINGS:
        if before.get(setting) != after.get(setting):
            raise GateError(
                f"{name} was measured with {setting} {before.get(setting)}, and now with {after.get(setting)}"
            )
    first, second = _series(key, old, "baseline"), _series(key, new, "results")
    try:
        change = changes.change(first, second)
    except ValueError as error:
        raise GateError(f"{name}: {error}; measure with a larger --repeat and --budget") from error
    return Finding(key, first.speedup, second.speedup, change, bound)


def _series(key: Key, rows: dict[Key, Record], which: str) -> Series:
    eager = rows.get(key._replace(mode="eager"))
    if eager is None or "times_ms" not in eager or "times_ms" not in rows[key]:
        raise GateError(f"the {which} have no times of {key.model} {key.test} in the modes eager and {key.mode}")
    paired = list(zip(eager["times_ms"], rows[key]["times_ms"], strict=False))  # a row may have ended early
    return Series([each[0] for each in paired], [each[1] for each in paired])


def _rows(records: Records) -> dict[Key, Record]:
    return {
        Key(record["test"], record["mode"], record["model"]): record for record in records if record["record"] == "row"
    }


def _environment(records: Records, which: str) -> Record:
    for record in records:
        if record["record"] == "environment":
            return record
    raise GateError(f"the {which} do not say on which machine they were measured")
