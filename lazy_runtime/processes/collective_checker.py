"""Whether the ranks of a job come to the same collectives.

XLA does not ask: ranks that sum a float32[4] and an int32[4] get garbage, gloo ends a process that is sent too many
bytes, and NCCL waits for ever. So each rank keeps a log of its collectives, and a thread that answers for it. Where a
rank is about to run a program after another one, it asks the others what they have at this place: always when it is
for the first time, else if nothing was asked for a while. In a loop of one program nothing is asked. Nobody waits until
another rank gets to a place: who is not there yet compares when it comes, before it starts. So of two ranks that differ
at most one has started, and the other raises.

An execution that does not end within `XLA_JOB_TIMEOUT` seconds is what the same threads find out about.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch.distributed

from ..common import source_locations
from .collective_log import Entry, Log, Program, shown

_dist: Any = torch.distributed
StoreError = _dist.DistError

#: Of all keys of ours in the store that torch's `env://` finds.
PREFIX = "openxla"

#: Seconds that a thread of another rank gets for an answer; whoever gets none goes on without.
ANSWER_S = 10.0

#: Questions about a change of programs that was seen before take no more than this part of the time.
SHARE = 0.005

#: How many of its questions a rank leaves in the store for those who come late. (Whoever comes later asks anew.)
KEPT = 16


class MismatchError(RuntimeError):
    """The ranks have come to different collectives."""


class Question(NamedTuple):
    """What a rank is about to do.

    Attributes:
        rank: which one asks.
        ranks: the ones that compute together.
        position: the place in their log.
        collectives: from there on: each collective, and the user's line.
    """

    rank: int
    ranks: tuple[int, ...]
    position: int
    collectives: list[tuple[str, str]]


class Agreement:
    """This process's part in it.

    Args:
        rank: its number.
        notes: the job's store.
    """

    def __init__(self, rank: int, notes: Any):
        self.rank = rank
        self.logs: dict[tuple[int, ...], Log] = {}
        self._notes = notes
        self._known: set[tuple[Program | None, Program]] = set()
        self._quiet_until = 0.0
        self._asked: deque[str] = deque()
        self._waiting: list[Question] = []
        self._failure: MismatchError | None = None
        self._busy = threading.Lock()

    def begin(self, program: Program, users: Mapping[int, str]) -> Entry:
        """Notes that an execution is about to be started.

        Args:
            users: call number → the user's line.

        Raises:
            MismatchError: another rank has come to something else.
        """
        log = self.logs.get(program.ranks)
        if log is None:
            log = self.logs[program.ranks] = Log()
        step = log.before, program
        entry = log.add(program, users)
        is_new = step not in self._known or (step[0] is not program and entry.began > self._quiet_until)
        if is_new or self._waiting or self._failure is not None:
            try:
                self._agree(entry, is_new)
            except MismatchError as error:
                self._failure = error
                raise
            self._known.add(step)
        return entry

    def _agree(self, entry: Entry, is_new: bool) -> None:
        if self._failure is not None:
            raise self._failure
        with self._busy:
            compared = [(question, self._compared(question)) for question in list(self._waiting)]
        for question, answer in compared:
            if isinstance(answer, list):
                raise MismatchError(_different(question, {self.rank: answer}))
        others = [rank for rank in entry.program.ranks if rank != self.rank]
        if is_new and others:
            self._ask(Question(self.rank, entry.program.ranks, entry.position, entry.described()), others)
            now = time.monotonic()
            self._quiet_until = now + (now - entry.began) / SHARE

    def _ask(self, mine: Question, others: Sequence[int]) -> None:
        """The first rank at a place asks all others; the ones after it compare with its question."""
        place = f"place/{_name(mine.ranks)}/{mine.position}"
        first = _read(self._notes.compare_set(place, "", json.dumps(mine)))
        if first.rank != self.rank:
            answer = _difference(first, mine.collectives)
            if answer is not None:
                raise MismatchError(_different(first, {self.rank: answer}))
            verdict = self._verdict(place)
        else:
            answers = self._answers(mine, others)
            verdict = _different(mine, answers) if any(isinstance(each, list) for each in answers.values()) else ""
            self._notes.set(f"{place}/verdict", verdict)
            self._asked.append(place)
            if len(self._asked) > KEPT:
                old = self._asked.popleft()
                self._notes.delete_key(old)
                self._notes.delete_key(f"{old}/verdict")
        if verdict:
            raise MismatchError(verdict)

    def _verdict(self, place: str) -> str:
        until = time.monotonic() + 2 * ANSWER_S
        while not self._notes.check([f"{place}/verdict"]):
            if time.monotonic() > until:
                return ""
            time.sleep(0.001)
        return self._notes.get(f"{place}/verdict").decode()

    def _answers(self, mine: Question, others: Sequence[int]) -> dict[int, Any]:
        asked = {rank: self.send(rank, "agree", mine) for rank in others}
        answers = dict(zip(others, self.replies(asked), strict=True))
        for rank, answer in answers.items():
            if isinstance(answer, dict) and answer.get(_name(mine.ranks), 0) <= mine.position:
                answers[rank] = [0, "has ended", ""]
        return answers

    # ---- letters between the ranks' threads

    def send(self, rank: int, kind: str, content: Any = None) -> str:
        """Writes to the thread of a rank.

        Returns:
            where its answer will be.
        """
        number = self._notes.add(f"letters/{rank}", 1)
        key = f"letters/{rank}/{number}"
        self._notes.set(key, json.dumps((kind, content)))
        return f"{key}/answer"

    def replies(self, asked: Mapping[int, str]) -> list[Any]:
        """The answers of several ranks; of one that has ended, what it left (`leave`); None for one without."""
        until = time.monotonic() + ANSWER_S
        found = []
        for rank, key in asked.items():
            while not (came := self._notes.check([key])) and time.monotonic() < until:
                if self._notes.check([f"left/{rank}"]):
                    break
                time.sleep(0.001)
            left = f"left/{rank}"
            key = key if came else left if self._notes.check([left]) else None
            found.append(None if key is None else json.loads(self._notes.get(key)))
            if came:
                self._notes.delete_key(key)
        return found

    def leave(self) -> None:
        """Lets the others know that this rank has ended, and after how many collectives."""
        self._notes.set(f"left/{self.rank}", json.dumps({_name(each): log.position for each, log in self.logs.items()}))

    def last_words(self, words: str) -> None:
        """Leaves what this process has to say before it ends itself, for `heard`."""
        self._notes.set(f"last words/{self.rank}", words)

    def answer(self, kind: str, content: Any) -> Any:
        """What this rank answers a letter; on its thread."""
        if kind == "agree":
            question = _question(content)
            with self._busy:
                self._waiting.append(question)  # first: the other thread may be about to come there
                return self._compared(question)
        return self.state()

    def _compared(self, question: Question) -> Any:
        """What is different here, as a list; how far this rank has come if it is not there; else "same"."""
        log = self.logs.get(question.ranks)
        found = log.since(question.position, len(question.collectives)) if log is not None else []
        if found is not None and len(found) < len(question.collectives):
            answer = _difference(question, found)
            return answer or ("same" if found else log.position if log is not None else 0)
        if question in self._waiting:
            self._waiting.remove(question)
        return (found and _difference(question, found)) or "same"

    def state(self) -> dict[str, Any]:
        """What this rank is doing."""
        waiting = self.unfinished()
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        return {
            "collectives": [] if waiting is None else waiting.described(),
            "position": None if waiting is None else waiting.position,
            "ranks": [] if waiting is None else waiting.program.ranks,
            "done": max((log.position for log in self.logs.values()), default=0),
            "line": str(source_locations.of_frame(frame) or "") if waiting is None else "",
        }

    def unfinished(self) -> Entry | None:
        """The execution that this rank waits for."""
        found = [entry for log in list(self.logs.values()) if (entry := log.unfinished()) is not None]
        return min(found, key=lambda entry: entry.began, default=None)


def heard(notes: Any, rank: int) -> str:
    """The last words of a rank, or nothing.

    Args:
        notes: the store behind the job's.
    """
    notes = _dist.PrefixStore(PREFIX, notes)
    key = f"last words/{rank}"
    return notes.get(key).decode() if notes.check([key]) else ""


def _name(ranks: Sequence[int]) -> str:
    return ",".join(map(str, ranks))


def _question(content: Sequence[Any]) -> Question:
    rank, ranks, position, collectives = content
    return Question(rank, tuple(ranks), position, [(text, line) for text, line in collectives])


def _read(note: bytes) -> Question:
    return _question(json.loads(note))


def _difference(question: Question, here: Sequence[tuple[str, str]]) -> list[Any] | None:
    """The first difference, as [its number in the question, what is here, its line]; None if there is none."""
    for number, ((text, _), (mine, line)) in enumerate(zip(question.collectives, here, strict=False)):
        if text != mine:
            return [number, mine, line]
    return None


def _different(question: Question, answers: Mapping[int, Any]) -> str:
    number = min(answer[0] for answer in answers.values() if isinstance(answer, list))
    text, line = question.collectives[number]
    said = {question.rank: shown([(text, line)])}
    for rank, answer in answers.items():
        if isinstance(answer, list):
            said[rank] = shown([answer[1:]]) if answer[0] == number else said[question.rank]
        elif answer is None:
            said[rank] = "does not answer"
        elif isinstance(answer, int):
            said[rank] = f"has come to {answer} collectives so far"
        else:
            said[rank] = said[question.rank]
    reports = "\n".join(f"  rank {rank}: {said[rank]}" for rank in sorted(said))
    return (
        f"the ranks have come to different collectives, number {question.position + number + 1} of the job:\n{reports}"
        "\nEvery rank has to come to the same collectives in the same order, with the same shapes and dtypes; with "
        "use_spmd to the same programs, of tensors and random seeds that are the same everywhere (docs/scaling.md)"
    )
