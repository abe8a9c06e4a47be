"""What the remaining time allows: which parts are started, how many models go together, and what is left out."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple


class LeftOut(NamedTuple):
    """A part of the program that was not run.

    Attributes:
        what: its name.
        why: the reason, for the summary.
    """

    what: str
    why: str


class Planner:
    """Decides from the time that is left what is started.

    A wave is a number of models that are prepared in parallel, and timed one after the other.

    Args:
        seconds: of the whole program.
        prepare_s: a first estimate of a wave's preparation, in which models are compiled.
        timing_s: a first estimate of the time that a model has the device for itself.
        reserve_s: is kept for the last tables and the end of processes.
        tell: is told of each part that is left out.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        seconds: float,
        prepare_s: float,
        timing_s: float,
        reserve_s: float = 10.0,
        tell: Callable[[LeftOut], object] = lambda left_out: None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._clock = clock
        self._tell = tell
        self._began = clock()
        self.deadline = self._began + seconds - reserve_s
        self.prepare_s = prepare_s
        self.timing_s = timing_s

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._began

    @property
    def left_s(self) -> float:
        """Seconds that may still be spent; never negative."""
        return max(0.0, self.deadline - self._clock())

    def may_start(self, what: str, needs_s: float) -> bool:
        """Whether a part fits into what is left. One that does not is left out.

        Args:
            needs_s: seconds without which the part is not worth its start.
        """
        left = self.left_s
        if needs_s > left:
            self.leave_out(what, f"it needs {needs_s:.0f} s, and {left:.0f} s were left")
            return False
        return True

    def leave_out(self, what: str, why: str) -> None:
        """Notes a part that is not run."""
        self._tell(LeftOut(what, why))

    def limit_s(self, most_s: float) -> float:
        """A part's own limit, which ends no later than the program."""
        return min(most_s, self.left_s)

    def wave_size(self, waiting: int, most: int, keep_s: float = 0.0) -> int:
        """How many of the waiting models are started together; 0 if time is left for none.

        Args:
            most: what the cores allow.
            keep_s: seconds that later parts get.
        """
        timing = self.left_s - keep_s - self.prepare_s
        return max(0, min(waiting, most, int(timing / self.timing_s)))

    def prepare_limit_s(self, size: int, most_s: float) -> float:
        """How long a wave may prepare, so that all of its models can still be timed."""
        return max(0.0, min(most_s, self.left_s - size * self.timing_s))

    def observe(self, prepared_s: float, timed_s: float, timed: int) -> None:
        """Replaces the estimates by what the last wave took.

        Args:
            prepared_s: until all of its models were ready, or given up.
            timed_s: of all of its models together.
            timed: how many of them were timed.
        """
        self.prepare_s = prepared_s
        if timed:
            self.timing_s = timed_s / timed
