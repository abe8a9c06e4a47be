"""Runs random programs on the CPU and on xla, shrinks those that differ and prints them.

python -m tests.fuzz --programs 10000               # views and writes
python -m tests.fuzz networks --programs 1000       # networks, trained three steps
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import importlib
import queue
import random
import sys

from tqdm import tqdm

from .campaign import Campaign
from .workers import Worker

CHUNKS = {"views": 50, "networks": 10}  # programs of one seed
FULL = 10  # every so many chunks are compiled with all of LLVM's optimizations


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("fuzzer", nargs="?", choices=list(CHUNKS), default="views", help="default: %(default)s")
    parser.add_argument("--programs", type=int, default=10_000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="the first chunk's seed (default: another one each time)")
    parser.add_argument("--roads", help="default: all")
    parser.add_argument("--workers", type=int, default=1, help="processes at a time (default: %(default)s)")
    options = parser.parse_args()
    fuzzer = importlib.import_module(f"{__package__}.{options.fuzzer}")
    roads = tuple(options.roads.split(",")) if options.roads else tuple(fuzzer.ROADS)
    if unknown := set(roads) - set(fuzzer.ROADS):
        parser.error(f"no such road: {', '.join(sorted(unknown))} (there are {', '.join(fuzzer.ROADS)})")
    seed = random.randrange(10**6) if options.seed is None else options.seed
    print(f"{options.programs} programs, --seed {seed}, roads {', '.join(roads)}", flush=True)

    chunk = CHUNKS[options.fuzzer]
    chunks: queue.Queue[tuple[int, int]] = queue.Queue()
    for number, start in enumerate(range(0, options.programs, chunk)):
        chunks.put((seed + number, min(chunk, options.programs - start)))
    with tqdm(total=options.programs, unit="program", mininterval=10) as progress:
        campaign = Campaign(fuzzer, roads, progress)

        def work() -> None:
            workers = quick, full = Worker(options.fuzzer), Worker(options.fuzzer, flags="")
            with contextlib.ExitStack() as stack, contextlib.suppress(queue.Empty):
                for worker in workers:
                    stack.callback(worker.close)
                while True:
                    number, count = chunks.get_nowait()
                    campaign.run(number, count, full if number % FULL == 0 else quick, full)

        with concurrent.futures.ThreadPoolExecutor(options.workers) as pool:
            for task in [pool.submit(work) for _ in range(options.workers)]:
                task.result()
    print(f"{campaign.programs} programs, {campaign.failures} differ, in {len(campaign.found)} ways")
    if campaign.torchs:
        print(f"{campaign.torchs} more differ where torch is wrong, as finite differences or its own compiler show")
    if campaign.unoptimized:
        print(f"{campaign.unoptimized} more differ only where LLVM optimizes nothing")
    return 1 if campaign.failures or campaign.programs < options.programs else 0


if __name__ == "__main__":
    sys.exit(main())
