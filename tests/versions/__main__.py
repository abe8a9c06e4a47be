"""The command line: `python -m tests.versions [--python 3.12] [--torch 2.14.1] [--jax 0.12.0.1]`.

What was seen goes into `lazy_runtime/compat/seen.json`, of which `python -m lazy_runtime.compat` makes a table.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lazy_runtime.compat import seen

from . import environment
from .matrix import MATRIX


def main(argv: Sequence[str] | None = None) -> int:
    """Tries the combinations that the options leave.

    Returns:
        The exit status: 1 if a test failed or something could not be installed.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("python", "torch", "jax"):
        parser.add_argument(f"--{name}", action="append", help=f"only with this {name}")
    parser.add_argument("--folder", type=Path, default=environment.ROOT / "build" / "versions", help="of environments")
    arguments = parser.parse_args(argv)
    chosen = [
        each
        for each in MATRIX
        if all(value in (getattr(arguments, name) or [value]) for name, value in each._asdict().items())
    ]
    if not chosen:
        parser.error("no combination of tests/versions/matrix.py has these versions")
    status = 0
    for combination in chosen:
        folder = arguments.folder / str(combination)
        folder.mkdir(parents=True, exist_ok=True)
        print(f"{combination}", flush=True)
        try:
            found = environment.outcome(combination, folder)
        except (environment.MissingError, subprocess.CalledProcessError) as error:
            print(f"  {error}", file=sys.stderr)
            status = 1
            continue
        revision = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        seen.record({**found, "commit": revision.stdout.strip()})
        print(f"  {found['passed']} passed, {found['failed']} failed, {found['skipped']} skipped")
        for name in found["failures"]:
            print(f"  {name}")
        status |= bool(found["failed"])
    return status


if __name__ == "__main__":
    sys.exit(main())
