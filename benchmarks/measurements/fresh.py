"""Functions that are called in a new process, in which nothing was run before."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any


def call(function: Callable[..., Any], *arguments: Any, environment: Mapping[str, str] | None = None) -> Any:
    """What a function of a module returns in a process of its own, as JSON brings it back.

    Args:
        function: at the top of its module.
        arguments: what JSON has.
        environment: variables that the process gets beside this one's.

    Raises:
        RuntimeError: it failed; the message ends with what it said.
    """
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(environment or {})}
    command = [sys.executable, "-m", __name__, function.__module__, function.__qualname__, json.dumps(arguments)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{function.__qualname__}{arguments} failed: {_said(done)}")
    return json.loads(done.stdout.splitlines()[-1])


def _said(done: subprocess.CompletedProcess[str]) -> str:
    """What a process that failed said, and at the end the signal that ended it, of which it says nothing itself."""
    said = done.stderr[-2000:]
    if done.returncode < 0:
        return f"{said}\nits process died of {signal.Signals(-done.returncode).name}".lstrip()
    return said or f"its process ended with status {done.returncode} and no message"


if __name__ == "__main__":
    found = getattr(importlib.import_module(sys.argv[1]), sys.argv[2])(*json.loads(sys.argv[3]))
    print(f"\n{json.dumps(found)}")
