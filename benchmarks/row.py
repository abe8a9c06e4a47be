"""One model in one mode: what is known of it so far, and the program while it has not failed."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from . import counters, environment, measure, verify
from .modes import MODES, Program


class Round(NamedTuple):
    """What was counted in one timed round.

    Attributes:
        executions, compiles: by XLA.
        host_s: until each of its steps returned; empty if it does not consist of steps.
    """

    executions: int
    compiles: int
    host_s: Sequence[float]


class Row:
    """A line of the results in the making.

    It can be timed (`measure.Timed`). An exception in anything that a row is asked to do becomes its failure, and the
    other rows go on.

    Args:
        record: what is known beforehand; `model`, `test` and `mode` at least.
    """

    def __init__(self, record: dict[str, Any]):
        self.record = record
        self.checks: dict[str, verify.Check] = {}
        self.failure: str | None = None
        self.program: Program | None = None
        self.rounds: list[Round] = []

    def first_call(self, make: Callable[[], Program], expected: verify.Reference | None) -> None:
        """Makes the program, runs it for the first time, and compares it with eager unless it is eager."""

        def action() -> None:
            program = make()
            before = counters.value("UncachedCompile")
            self.record["first_call_s"] = measure.seconds(program.run)
            self.record["first_call_compiles"] = counters.value("UncachedCompile") - before
            self.program = program
            if expected is not None:
                self.compare(expected)

        self._attempt(action)

    def settle(self, steps: int) -> None:
        """Runs so many steps after the first, untimed, and takes down what they compiled."""
        if self.program is not None:
            program = self.program

            def action() -> None:
                before = counters.value("UncachedCompile")
                self.record["settling_s"] = measure.seconds(lambda: [program.run() for _ in range(steps)])
                self.record["settling_compiles"] = counters.value("UncachedCompile") - before

            self._attempt(action)

    def first_step_again(self) -> None:
        """Has the program, a step's, begin where it first began."""
        if self.program is not None:
            self._attempt(self.program.first_step_again)

    def compare(self, expected: verify.Reference) -> None:
        """Compares the program's last results with eager's."""
        if self.program is not None:
            program = self.program
            self._attempt(lambda: self._hold(self._check(program.results(), expected)))

    def compare_another(self, make: Callable[[], Program], expected: verify.Reference) -> None:
        """Compares the first results of a program beside the row's own with eager's."""

        def action() -> None:
            program = make()
            program.run()
            self._hold(self._check(program.results(), expected))

        self._attempt(action)

    def run(self) -> float | None:
        """One timed round; returns its seconds if the program has a clock of its own."""
        program = self.program
        if program is not None:
            executions, compiles = _work()
            host_s: list[float] = []
            self._attempt(lambda: host_s.extend(program.round()))
            executions_now, compiles_now = _work()
            self.rounds.append(Round(executions_now - executions, compiles_now - compiles, host_s))
        return None if program is None else program.taken_s

    def rehearse(self) -> None:
        """One round that counts for nothing."""
        if self.program is not None:
            self._attempt(self.program.rehearse)

    @property
    def rest_s(self) -> float:
        """How long the others wait after a round of it."""
        return 0.0 if self.program is None else self.program.rest_s

    def clear(self) -> None:
        """Forgets the last run's results."""
        if self.program is not None:
            self.program.clear()

    def finish(self, times: list[float]) -> None:
        """Takes the seconds of the timed rounds, whose times are those of a step where they are loops of steps; the
        program is let go.
        """
        self.program = None
        if self.failure is not None or not times:
            return
        steps = self.record.get("loop", 1)
        series = [1e3 * taken / steps for taken in times]
        summary = measure.summarize(series)
        self.record.update(
            times_ms=[round(taken, 4) for taken in series],
            median_ms=summary.median,
            quartiles_ms=[summary.lower, summary.upper],
            recompiles=sum(each.compiles for each in self.rounds),
        )
        if self.record["test"] == "step" and MODES[self.record["mode"]].device == "xla":
            self._count_steps(self.rounds[-len(times) :], steps)

    def _count_steps(self, rounds: Sequence[Round], steps: int) -> None:
        """Takes what the kept rounds counted, by step."""
        host = measure.summarize([1e3 * taken for each in rounds for taken in each.host_s])
        self.record.update(
            executions_per_step=sum(each.executions for each in rounds) / (steps * len(rounds)),
            compiles_per_step=sum(each.compiles for each in rounds) / (steps * len(rounds)),
            host_ms=host.median,
            host_quartiles_ms=[host.lower, host.upper],
        )

    def finished(self) -> dict[str, Any]:
        """The record as it is written."""
        return {**self.record, "checks": [check.record() for check in self.checks.values()], "failure": self.failure}

    def _check(self, actual: verify.Results, expected: verify.Reference) -> verify.Check:
        mode = MODES[self.record["mode"]]
        is_eager = mode.device == "cpu" and mode.backend is None and not mode.autocast
        of_eagers = verify.OF_EAGERS_IN_ANOTHER_FORMAT if is_eager else verify.OF_EAGERS
        tf32 = self.record.get("tf32", False) and mode.device != "cpu" and not mode.autocast
        return verify.check(self.record["test"], actual, expected, mode.autocast, of_eagers, tf32)

    def _hold(self, check: verify.Check) -> None:
        """Fails the row if the check did not pass. Of two checks of one thing the worse is kept."""
        known = self.checks.get(check.what)
        if known is None or not check.error <= known.error:
            self.checks[check.what] = check
        if not check.passed:
            self._fail(f"error {check.error:.1e} in {check.what}, at most {check.bound:.1e} is allowed")

    def _attempt(self, action: Callable[[], object]) -> None:
        if self.failure is not None:
            return
        try:
            action()
        except Exception as error:
            traceback.print_exc()
            self._fail(environment.one_line(error))

    def _fail(self, reason: str) -> None:
        self.failure = reason
        self.program = None


def _work() -> tuple[int, int]:
    """How often XLA has executed and compiled a program so far."""
    return counters.value("ExecuteComputation"), counters.value("UncachedCompile")
