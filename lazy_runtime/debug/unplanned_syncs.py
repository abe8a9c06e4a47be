"""Where the host waited for the device without a sync: `.item()`, `print`, `if tensor:`, and their like."""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import linecache
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from ..common import metrics, output, source_locations
from ..common.source_locations import Line
from .formats import counted, duration


@dataclasses.dataclass(frozen=True)
class Wait:
    """A line that made the host wait.

    Attributes:
        line: the user's line; None where a thread has none.
        code: what the line does, as far as it can be told: `loss.item()`.
        count: how often.
        seconds: how long in all, from the request to the data on the host.
        executed: how often it ran what was pending, as a program of its own; else the program was already started.
        operators: how many operators these programs had in all.
    """

    line: Line | None
    code: str
    count: int
    seconds: float
    executed: int
    operators: int

    def __str__(self) -> str:
        """`unplanned sync at train.py:52 (loss.item()): waited 12 ms, ran 57 pending operators`."""
        place = str(self.line) if self.line is not None else "a thread without a line of yours"
        code = f" ({self.code})" if self.code else ""
        times = f" in {self.count} times" if self.count > 1 else ""
        ran = f", ran {counted(self.operators, 'pending operator')}" if self.executed else ""
        return f"unplanned sync at {place}{code}: waited {duration(self.seconds)}{times}{ran}"


class _Record:
    """What is known of one line, while it is being counted."""

    __slots__ = ("code", "count", "executed", "line", "nanoseconds", "operators")

    def __init__(self, line: Line | None, code: str):
        self.line = line
        self.code = code
        self.count = self.nanoseconds = self.executed = self.operators = 0

    def wait(self) -> Wait:
        return Wait(self.line, self.code, self.count, self.nanoseconds / 1e9, self.executed, self.operators)


class _Thread(threading.local):
    """What is true of the calling thread.

    Attributes:
        planned: reads are what the code is there for, unless they cut the pending graph.
    """

    planned = False


_thread = _Thread()
_lock = threading.Lock()
_records: dict[tuple[str, int] | None, _Record] = {}  # by file and line


@contextlib.contextmanager
def planned() -> Iterator[None]:
    """Within the block, and in this thread, a read of a value that is there or under way is no unplanned sync."""
    outer, _thread.planned = _thread.planned, True
    try:
        yield
    finally:
        _thread.planned = outer


def waited(nanoseconds: int, operators: int) -> None:
    """Takes note of a read that has just ended.

    Args:
        nanoseconds: how long it took.
        operators: how many pending ones it ran.
    """
    if _thread.planned and not operators:
        return
    frame = _users_frame()
    key = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else None
    with _lock:
        record = _records.get(key)
        new = record is None
        if record is None:
            line = Line(*key, frame.f_code.co_name) if key is not None and frame is not None else None
            record = _records[key] = _Record(line, _code(frame))
        record.count += 1
        record.nanoseconds += nanoseconds
        record.executed += operators > 0
        record.operators += operators
    if new:
        metrics.count("UnplannedSyncLines")
        output.say("xla_syncs", str(record.wait()))


def waits() -> list[Wait]:
    """See `debug.syncs`."""
    with _lock:
        return sorted((record.wait() for record in _records.values()), key=lambda wait: -wait.seconds)


def clear() -> None:
    """Forgets every wait: each line is reported once more."""
    with _lock:
        _records.clear()


def _users_frame() -> FrameType | None:
    frame = sys._getframe(1)
    while frame is not None and source_locations.is_ours(frame.f_code.co_filename):
        frame = frame.f_back  # type: ignore[assignment]
    return frame


def _code(frame: FrameType | None) -> str:
    """The expression that the frame is evaluating, or its line where Python does not say (before 3.11)."""
    if frame is None:
        return ""
    file, number = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(file, number)
    if hasattr(frame.f_code, "co_positions"):
        for instruction in dis.get_instructions(frame.f_code):
            at = instruction.positions
            if instruction.offset == frame.f_lasti and at is not None and at.lineno == at.end_lineno == number:
                if "JUMP_IF" in instruction.opname or instruction.opname == "TO_BOOL":
                    break  # the condition of an `if`: the line says more than the name
                part = text.encode()[at.col_offset : at.end_col_offset].decode(errors="replace")
                return part or text.strip()
    return text.strip()
