"""Runs random programs in processes, shrinks those that differ and prints them."""

from __future__ import annotations

import sys
import threading
from typing import Any

from tqdm import tqdm

from .difference import Difference
from .shrink import shrink
from .workers import Worker


class Campaign:
    """Runs chunks of programs and gathers what differs.

    Args:
        fuzzer: the package of this folder whose programs are run.

    Attributes:
        programs: how many were run.
        failures: how many of them differed.
        torchs: how many differed where the fault is torch's own.
        unoptimized: how many differed where LLVM optimizes nothing, and not where it does.
        found: the shrunk ones, by what they say.
    """

    def __init__(self, fuzzer: Any, roads: tuple[str, ...], progress: tqdm):
        self.roads = roads
        self.programs = 0
        self.failures = 0
        self.torchs = 0
        self.unoptimized = 0
        self.found: dict[tuple, Any] = {}
        self._fuzzer = fuzzer
        self._seen: set[str] = set()
        self._progress = progress
        self._lock = threading.Lock()

    def run(self, seed: int, count: int, worker: Worker, judge: Worker) -> None:
        """Programs of one seed.

        Args:
            judge: has LLVM optimize as it does for users, who see a difference only if it is there too. Without that,
                LLVM makes one operation of a product and a sum in one copy of them and two in another, so that a number
                need not equal its own maximum.
        """
        programs = worker.generate(seed, count)
        if isinstance(programs, Difference):
            self.failures += 1
            self._report(programs, f"# generating the programs of seed {seed}")
            return
        for number, program in enumerate(programs):
            difference = worker.check(program, self.roads)
            if difference is not None and difference.road != "process" and worker is not judge:
                difference = self._judged(program, difference, judge)
            if difference is not None:
                difference = difference._replace(text=f"{difference.text}\n    # program {number} of seed {seed}")
                self._failed(program, difference, worker if difference.road == "process" else judge)
            with self._lock:
                self.programs += 1
                self._progress.update()

    def _judged(self, program: Any, difference: Difference, judge: Worker) -> Difference | None:
        found = judge.check(program, self.roads)
        if found is None:
            with self._lock:
                self.unoptimized += 1
                self._progress.write(f"    # only without optimizations: {difference}\n", file=sys.stdout)
        return found

    def _failed(self, program: Any, difference: Difference, worker: Worker) -> None:
        with self._lock:
            if difference.road == "torch":
                self.torchs += 1
            else:
                self.failures += 1
            self._progress.set_postfix(failures=self.failures, kinds=len(self.found))
            says_enough = not difference.kind.startswith(self._fuzzer.VAGUE)
            if says_enough and difference.kind in self._seen:
                self._progress.write(f"    # again: {difference}\n", file=sys.stdout)
                return
            self._seen.add(difference.kind)
        dies = difference.road == "process"
        roads = (difference.road,) if difference.road in self.roads else self.roads

        def fails(candidate: Any) -> bool:
            found = worker.check(candidate, roads)
            return found is not None and found.kind == difference.kind

        if not dies and not fails(program):
            note = Difference(difference.road, difference.kind, f"{difference.text} (not when run again)")
            self._report(note, program)
            return
        small = shrink(program, fails, self._fuzzer.smaller, tries=15 if dies else self._fuzzer.TRIES)
        text = difference.text.rpartition("\n")[2]
        final = worker.check(small, roads) or difference
        self._report(final._replace(text=f"{final.text}\n{text}"), small)

    def _report(self, difference: Difference, program: Any) -> None:
        key = difference.kind, *self._fuzzer.traits(program)
        with self._lock:
            if key in self.found:
                return
            self.found[key] = program
            self._progress.write(f'    # {difference}\n    "": """\n{program}\n""",\n', file=sys.stdout)
            sys.stdout.flush()
