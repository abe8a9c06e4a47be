"""Two threads in each process of a job: one answers other ranks' questions (`collective_checker.py`), and one ends the
process where an execution waits for a rank that does not come.
"""

from __future__ import annotations

import datetime
import json
import multiprocessing.util
import threading
import time
from collections.abc import Mapping
from typing import Any

from ..common import environment
from . import collective_checker, process_exit
from .collective_checker import Agreement
from .collective_log import Entry, Log, Program, shown

_agreement: Agreement | None = None


def begin(program: Program, lines: Mapping[int, str]) -> Entry:
    """See `Agreement.begin`; of a process that has joined no job, the log alone."""
    if _agreement is None:
        return Log().add(program, lines)
    return _agreement.begin(program, lines)


def start(rank: int, notes: Any) -> None:
    """Starts this process's threads.

    Args:
        notes: the job's store, of which the first thread gets a connection of its own.
    """
    global _agreement
    _agreement = Agreement(rank, notes)
    answering = _Answering(_agreement, notes.clone())
    watchdog = _Watchdog(_agreement)
    for thread in (answering, watchdog):
        thread.start()
        multiprocessing.util.Finalize(None, thread.stop, exitpriority=1)  # in processes of multiprocessing's too
    process_exit.after_error()


_FOR_EVER = datetime.timedelta(days=1000)


class _Answering(threading.Thread):
    def __init__(self, found: Agreement, notes: Any):
        super().__init__(name="lazy_runtime answers", daemon=True)
        self._agreement = found
        self._notes = notes

    def run(self) -> None:
        rank, number = self._agreement.rank, 1
        try:
            while True:
                key = f"letters/{rank}/{number}"
                self._notes.wait([key], _FOR_EVER)
                kind, content = json.loads(self._notes.get(key))
                self._notes.delete_key(key)
                number += 1
                if kind == "stop":
                    return
                self._notes.set(f"{key}/answer", json.dumps(self._agreement.answer(kind, content)))
        except collective_checker.StoreError:  # whoever holds the store has gone
            return

    def stop(self) -> None:
        """Ends the thread, after what was asked before."""
        try:
            self._agreement.leave()
            self._agreement.send(self._agreement.rank, "stop")
        except collective_checker.StoreError:
            return
        self.join(collective_checker.ANSWER_S)


class _Watchdog(threading.Thread):
    def __init__(self, found: Agreement):
        super().__init__(name="lazy_runtime watchdog", daemon=True)
        self._agreement = found
        self._stopped = threading.Event()
        self._looked = time.monotonic()
        self._late: Entry | None = None
        self._waited = 0.0

    def run(self) -> None:
        while not self._stopped.wait(self._interval()):
            self._look()

    def stop(self) -> None:
        self._stopped.set()

    def _interval(self) -> float:
        return min(environment.value("XLA_JOB_TIMEOUT") / 4, 5.0)

    def _look(self) -> None:
        now = time.monotonic()
        # a process that was stopped for a while has not waited then
        passed, self._looked = min(now - self._looked, 2 * self._interval()), now
        late = self._agreement.unfinished()
        self._waited = self._waited + passed if late is not None and late is self._late else 0.0
        self._late = late
        if late is not None and self._waited > environment.value("XLA_JOB_TIMEOUT"):
            self._waited = 0.0
            try:
                self._end_if_in_vain(late)
            except collective_checker.StoreError as error:
                seconds = environment.value("XLA_JOB_TIMEOUT")
                process_exit.now(
                    f"rank {self._agreement.rank} has waited {seconds} s (XLA_JOB_TIMEOUT) for the other ranks in "
                    f"{shown(late.described())}, and cannot ask them, since the job's store has gone: {error}"
                )

    def _end_if_in_vain(self, late: Entry) -> None:
        """Ends the process unless all ranks are at the same execution, which takes its time then."""
        rank, ranks = self._agreement.rank, late.program.ranks
        others = [each for each in ranks if each != rank]
        asked = {each: self._agreement.send(each, "state") for each in others}
        states = dict(zip(others, self._agreement.replies(asked), strict=True))
        if late.is_done:
            return
        states[rank] = self._agreement.state()
        words = _report(rank, late, states)
        process_exit.say(words)
        if any(state is None or state.get("position") != late.position for state in states.values()):
            self._agreement.last_words(words)
            process_exit.now()


def _report(rank: int, late: Entry, states: Mapping[int, dict[str, Any] | None]) -> str:
    said = [f"  rank {each}: {_described(states[each])}" for each in sorted(states)]
    seconds = environment.value("XLA_JOB_TIMEOUT")
    place = f"at collective {late.position + 1} of the job"
    return "\n".join([f"rank {rank} has waited {seconds} s (XLA_JOB_TIMEOUT) for the other ranks, {place}:", *said])


def _described(state: dict[str, Any] | None) -> str:
    if state is None:
        return "does not answer"
    if "line" not in state:
        return "has ended"
    if not state["collectives"]:
        place = f"at {state['line']}" if state["line"] else "at no known line"
        return f"is {place}, after {state['done']} collectives"
    return f"waits in {shown(state['collectives'])} (collective {state['position'] + 1})"
