"""`python -m tests.gradients [PART OF A NAME ...] [--batches 2 1] [--roads lazy compiled cpu]`."""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from .compare import ROADS, differences
from .models import MODELS


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gradients", description="Gradients of real models in float64."
    )
    parser.add_argument("names", nargs="*", help="parts of names of models (default: all)")
    parser.add_argument("--batches", type=int, nargs="+", default=[2, 1])
    parser.add_argument("--roads", nargs="+", choices=list(ROADS), default=list(ROADS))
    arguments = parser.parse_args()
    wrong = 0
    for name, model in MODELS.items():
        if arguments.names and not any(part in name for part in arguments.names):
            continue
        for batch in arguments.batches:
            begin, found = time.perf_counter(), []
            try:
                for road, worst in differences(model, batch, arguments.roads):
                    found.append(f"{road} {worst.error:.0e}")
                    if not worst.error <= model.tolerance:
                        wrong += 1
                        found[-1] += f" WRONG at {worst.name}"
            except Exception as error:
                wrong += 1
                traceback.print_exc()
                found.append(f"{type(error).__name__}: {str(error)[:200]}")
            print(f"{name}, batch {batch}: {'; '.join(found)} ({time.perf_counter() - begin:.0f} s)", flush=True)
    print(f"{wrong} of them are not as eager's" if wrong else "all are as eager's")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
