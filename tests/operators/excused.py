"""Wrong calls that xla and the CPU judge differently, and why that holds."""

from __future__ import annotations

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Excused:
    """Some differences and the reason for them.

    Args:
        entries: a regular expression over the whole name of an entry.
        kinds: one over the whole name of the change, see `wrong`.
        problems: one that is searched in the difference.
    """

    reason: str
    entries: str = ".*"
    kinds: str = ".*"
    problems: str = ""

    def takes(self, entry: str, kind: str, problem: str) -> bool:
        return (
            re.fullmatch(self.entries, entry) is not None
            and re.fullmatch(self.kinds, kind) is not None
            and re.search(self.problems, problem) is not None
        )


EXCUSED: list[Excused] = []


def reason(entry: str, kind: str, problem: str) -> str | None:
    """Why the difference holds; None for one that is a fault."""
    return next((each.reason for each in EXCUSED if each.takes(entry, kind, problem)), None)
