"""The regression gate: whether a speedup over eager fell, between two results, by more than noise.

Each model is judged by itself and each test's geomean too. A fall counts where the whole interval that the runs' noise
leaves open (`changes.py`) lies below what is allowed. What is allowed is for noise that a run cannot show: how a
process's memory happens to lie makes a few percent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from tabulate import tabulate

from . import changes
from .changes import Change, Series
from .modes import MODES

#: Shares of a speedup. Between two runs at different times more changes than within one.
ALLOWED, ALLOWED_APART, ALLOWED_GEOMEAN = 0.05, 0.07, 0.04

#: What has to be alike in two rows for their speedups to be compared.
SETTINGS = ("input_shape", "loop", "torch_threads", "xla_device")

Record = dict[str, Any]
Records = Sequence[Record]


class GateError(ValueError):
    """Two results that cannot be compared; the message says why, in one line."""


class Allowed(NamedTuple):
    """By what share a speedup may fall.

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
        before, after: the speedups over eager; None for a geomean and where there are no times.
        change: None where there are no times on both sides.
        failure: why the row has no times afterwards.
        only_once: what looks like a fall here did not in another measurement.
    """

    key: Key
    before: float | None
    after: float | None
    change: Change | None
    allowed: float
    failure: str | None = None
    only_once: bool = False

    @property
    def fell(self) -> bool:
        """Whether this is a regression."""
        if self.failure is not None or self.change is None:
            return self.failure is not None
        return self.change.below(self.allowed) and not self.only_once

    @property
    def verdict(self) -> str:
        """In a word or two."""
        if self.failure is not None:
            return "**fails now**"
        if self.change is None:
            return "failed before"
        if self.only_once or self.change.above(self.allowed):
            return "fell only once" if self.only_once else "rose"
        if self.fell:
            return "**fell**"
        return "too noisy to tell" if self.change.vague(self.allowed) else ""


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
    *,
    together: bool = False,
    modes: Collection[str] | None = None,
) -> list[Finding]:
    """Compares all rows of the baseline with the results'; a test's and mode's geomean comes after its models.

    Args:
        together: both were measured in turns, round by round.
        modes: those that are judged; all of this package's if None.

    Raises:
        GateError: rows are missing, were measured with other settings or in too few rounds, or there are none.
    """
    allowed = Allowed() if allowed is None else allowed
    old, new = _rows(before), _rows(after)
    ours = [mode for mode in MODES if MODES[mode].device == "xla"] if modes is None else modes
    keys = sorted((key for key in old if key.mode in ours), key=lambda key: (key.test, key.mode))
    missing = [" ".join((key.model, key.test, key.mode)) for key in keys if key not in new]
    if missing:
        raise GateError(f"the results lack {', '.join(missing)}, which the baseline has")
    if not keys:
        raise GateError(f"the baseline has no row of the modes {', '.join(ours)}")
    findings: list[Finding] = []
    for group in dict.fromkeys((key.test, key.mode) for key in keys):
        models = [_finding(key, old, new, allowed, together) for key in keys if key[:2] == group]
        findings += models
        moved = [each.change for each in models if each.change is not None]
        if len(moved) > 1:
            mean = changes.geomean(moved)
            findings.append(Finding(Key(*group, "geomean"), None, None, mean, allowed.geomean))
    if all(each.change is None and each.failure is None for each in findings):
        raise GateError("there is nothing to compare: every row of the baseline failed")
    return findings


def fallen_twice(first: Sequence[Finding], second: Sequence[Finding]) -> list[Finding]:
    """The second measurement's findings, where a fall counts if the first's shows it too."""
    fell = {each.key for each in first if each.fell}
    return [each._replace(only_once=each.fell and each.key not in fell) for each in second]


def markdown(findings: Sequence[Finding], notes: Sequence[str] = ()) -> str:
    """The verdict, a table of what moved, and the notes."""
    fell = [each for each in findings if each.fell]
    names = ", ".join(f"{each.key.model} ({each.key.test}, {each.key.mode})" for each in fell)
    title = f"## Performance: {f'regression of {names}' if fell else 'no regression'}"
    headers = ["test", "mode", "model", "speedup before", "after", "change", "at least", "at most", "allowed", ""]
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
    bounds = (
        f"Speedups are over eager in the same rounds, each by its fastest {changes.QUANTILE:.0%}. Bounds hold with "
        f"{changes.CONFIDENCE:.0%} each, by bootstrap."
    )
    return "\n\n".join([title, table, bounds, *failures, *notes])


def _speedup(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _moved(change: Change | None) -> list[str]:
    if change is None:
        return ["-"] * 3
    return [f"{ratio - 1:+.1%}" for ratio in (change.ratio, change.low, change.high)]


def _finding(key: Key, old: dict[Key, Record], new: dict[Key, Record], allowed: Allowed, together: bool) -> Finding:
    before, after = old[key], new[key]
    bound = allowed.of(key.model, together)
    if before["failure"] is not None:
        return Finding(key, None, None, None, bound)
    if after["failure"] is not None:
        return Finding(key, None, None, None, bound, after["failure"])
    name = " ".join((key.model, key.test, key.mode))
    for setting in SETTINGS:
        if before.get(setting) != after.get(setting):
            raise GateError(
                f"{name} was measured with {setting} {before.get(setting)}, and now with {after.get(setting)}"
            )
    first, second = _series(key, old, "baseline"), _series(key, new, "results")
    try:
        change = changes.change(first, second, together=together)
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
