"""What a fuzzer says of a program on which two roads differ."""

from __future__ import annotations

import contextlib
import re
from typing import NamedTuple

import lazy_runtime
from lazy_runtime.platform import xla_devices


class Difference(NamedTuple):
    """What differs between eager PyTorch on the CPU and a road of this package.

    Attributes:
        road: where; "" if it is not known yet, "torch" if the fault is torch's own.
        kind: what sort of thing differs, the same for all differences that are likely to be one.
        text: what, for people.
    """

    road: str
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.road}: {self.text}"


def kind_of(text: str) -> str:
    """A message without what changes from program to program."""
    return re.sub(r"\d+", "N", re.sub(r"\[[^\[\]]*\]|\([^()]*\)", "", text))


def failure(error: Exception) -> Difference:
    """A program that could not be run to its end."""
    text = f"{type(error).__name__}: {error}"
    return Difference("", kind_of(text.partition("\n\nSet TORCHDYNAMO_VERBOSE")[0]), text)


def forget_what_is_pending() -> None:
    """A program that cannot be computed is no part of the next one's."""
    xla_devices.get("xla:0").pending.clear()
    for _ in range(2):  # each failure is raised once
        with contextlib.suppress(Exception):
            lazy_runtime.sync(wait=True)
