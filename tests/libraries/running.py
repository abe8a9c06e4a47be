"""Runs a program of `programs/` by `python -m lazy_runtime`, and the same one on the CPU by plain `python`."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

HERE = Path(__file__).parent

#: Seconds for one program.
TIMEOUT_S = 400


def needs(*names: str) -> Any:
    """Skips tests where a library is not installed. It is not imported: that is the programs' affair."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed: make test-libraries")


class Run(NamedTuple):
    """What a program has printed and what the engine has counted.

    Attributes:
        found: the object in the last line of the output.
        executions: programs that XLA has executed until each step's end (of one process; else of all, mixed).
        compiles: programs that XLA has compiled until then.
        printed: standard output and standard error.
    """

    found: Any
    executions: list[int]
    compiles: list[int]
    printed: str

    def per_step(self, first: int, last: int | None = None) -> list[tuple[int, int]]:
        """Executions and compiles of each step from the one with the number `first` on."""
        ends = list(zip(self.executions, self.compiles, strict=True))[first - 1 : last]
        return [(end[0] - start[0], end[1] - start[1]) for start, end in itertools.pairwise(ends)]


def on_xla(program: str, *arguments: object, folder: Path, devices: int = 1, launcher: list[str] | None = None) -> Run:
    """Runs a program under the alias.

    Args:
        program: the name of a file in `programs/`.
        folder: where it runs, and writes.
        devices: how many xla devices there are.
        launcher: what stands between `python -m lazy_runtime` and the file's name.
    """
    counts = folder / "metrics.txt"
    counts.unlink(missing_ok=True)
    command = ["-m", "lazy_runtime", *(launcher or []), str(HERE / "programs" / program)]
    printed, found = _run(command, arguments, folder, XLA_METRICS_FILE=str(counts), CPU_NUM_DEVICES=str(devices))
    steps = counts.read_text().split("[MetricsData;")[1:] if counts.exists() else []
    executions, compiles = (
        [_counted(each, name) for each in steps] for name in ("ExecuteComputation", "UncachedCompile")
    )
    return Run(found, executions, compiles, printed)


def on_cpu(program: str, *arguments: object, folder: Path) -> Any:
    """Runs a program without this package: the object in the last line of its output."""
    return _run([str(HERE / "programs" / program)], arguments, folder)[1]


def _run(command: list[str], arguments: tuple[object, ...], folder: Path, **variables: str) -> tuple[str, Any]:
    root = HERE.parents[1]
    done = subprocess.run(
        [sys.executable, *command, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={
            **os.environ,
            "XLA_PERSISTENT_CACHE_PATH": "0",
            "PYTHONPATH": os.pathsep.join((str(HERE / "site"), str(root))),
            "CUDA_VISIBLE_DEVICES": "",  # the comparison is with the CPU
            "HF_HUB_OFFLINE": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            **variables,
        },
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr, json.loads(lines[-1])


def _counted(report: str, name: str) -> int:
    found = re.search(rf"Counter: {name}\n\s+Value: (\d+)", report)
    return int(found[1]) if found else 0
