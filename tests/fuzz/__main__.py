"""Runs random programs on the CPU and on xla, shrinks those that differ and prints them.

python -m tests.fuzz --programs 10000
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import queue
import random
import re
import sys
import threading

from tqdm import tqdm

from .language import Program
from .run import ROADS, Difference
from .shrink import shrink
from .workers import Worker

CHUNK = 50  # programs of one seed
FULL = 10  # every so many chunks are compiled with all of LLVM's optimizations


class Campaign:
    """Runs chunks of programs and gathers what differs.

    Attributes:
        failures: how many programs differed.
        found: the shrunk ones, by what they say.
    """

    def __init__(self, roads: tuple[str, ...], progress: tqdm):
        self.roads = roads
        self.failures = 0
        self.programs = 0
        self.found: dict[tuple, Program] = {}
        self._seen: set[str] = set()
        self._progress = progress
        self._lock = threading.Lock()

    def run(self, seed: int, count: int, worker: Worker) -> None:
        """Programs of one seed."""
        programs = worker.generate(seed, count)
        if isinstance(programs, Difference):
            self._report(programs, Program((f"# generating the programs of seed {seed}",)))
            return
        for program in programs:
            difference = worker.check(program, self.roads)
            if difference is not None:
                self._failed(program, difference, worker)
            with self._lock:
                self.programs += 1
                self._progress.update()

    def _failed(self, program: Program, difference: Difference, worker: Worker) -> None:
        with self._lock:
            self.failures += 1
            self._progress.set_postfix(failures=self.failures, kinds=len(self.found))
            says_enough = not difference.kind.startswith(("values", "reads"))
            if says_enough and difference.kind in self._seen:
                return
            self._seen.add(difference.kind)
        dies = difference.road == "process"
        roads = self.roads if dies else (difference.road,)

        def fails(candidate: Program) -> bool:
            found = worker.check(candidate, roads)
            return found is not None and found.kind == difference.kind

        if not dies and not fails(program):
            note = Difference(difference.road, difference.kind, f"{difference.text} (not when run again)")
            self._report(note, program)
            return
        small = shrink(program, fails, tries=15 if dies else 200)
        self._report(worker.check(small, roads) or difference, small)

    def _report(self, difference: Difference, program: Program) -> None:
        key = difference.kind, *sorted(set(re.findall(r"\.(\w+)\(| ([-+*]?=) ", "\n".join(program.statements))))
        with self._lock:
            if key in self.found:
                return
            self.found[key] = program
            self._progress.write(f'    # {difference}\n    "": """\n{program}\n""",\n', file=sys.stdout)
            sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--programs", type=int, default=10_000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="the first chunk's seed (default: another one each time)")
    parser.add_argument("--roads", default=",".join(ROADS), help="default: %(default)s")
    parser.add_argument("--workers", type=int, default=1, help="processes at a time (default: %(default)s)")
    options = parser.parse_args()
    roads = tuple(options.roads.split(","))
    if unknown := set(roads) - set(ROADS):
        parser.error(f"no such road: {', '.join(sorted(unknown))} (there are {', '.join(ROADS)})")
    seed = random.randrange(10**6) if options.seed is None else options.seed
    print(f"{options.programs} programs, --seed {seed}, roads {', '.join(roads)}", flush=True)

    chunks: queue.Queue[tuple[int, int]] = queue.Queue()
    for number, start in enumerate(range(0, options.programs, CHUNK)):
        chunks.put((seed + number, min(CHUNK, options.programs - start)))
    with tqdm(total=options.programs, unit="program", mininterval=10) as progress:
        campaign = Campaign(roads, progress)

        def work() -> None:
            workers = Worker(), Worker(flags="")
            with contextlib.ExitStack() as stack, contextlib.suppress(queue.Empty):
                for worker in workers:
                    stack.callback(worker.close)
                while True:
                    number, count = chunks.get_nowait()
                    campaign.run(number, count, workers[number % FULL == 0])

        with concurrent.futures.ThreadPoolExecutor(options.workers) as pool:
            for task in [pool.submit(work) for _ in range(options.workers)]:
                task.result()
    print(f"{campaign.programs} programs, {campaign.failures} differ, in {len(campaign.found)} ways")
    return 1 if campaign.failures or campaign.programs < options.programs else 0


if __name__ == "__main__":
    sys.exit(main())
