"""Functions in a process of their own, which is ended with all that it has started when its time is over."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ..measurements import fresh

#: The leaders of the groups that run now.
_running: set[int] = set()


class ChildError(RuntimeError):
    """The function failed or took too long; the message says which."""


def call(
    function: Callable[..., Any], *arguments: Any, limit_s: float, environment: Mapping[str, str] | None = None
) -> Any:
    """Returns what a function returns in a new process, as JSON brings it back.

    Args:
        function: at the top of its module.
        arguments: what JSON has.
        limit_s: seconds, after which the process is ended.
        environment: variables that the process gets beside this one's.

    Raises:
        ChildError: it raised, died or took longer.
    """
    name = function.__name__
    command = [sys.executable, "-m", fresh.__name__, function.__module__, function.__qualname__, json.dumps(arguments)]
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    _running.add(process.pid)
    with process:  # closes its pipes and waits for its end
        try:
            output, errors = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise ChildError(f"{name} was not done after {limit_s:.0f} s") from None
        finally:
            end_group(process.pid)
            _running.discard(process.pid)
    if process.returncode:
        raise ChildError(f"{name} failed: {_last_line(errors) or f'exit code {process.returncode}'}")
    return json.loads(output.splitlines()[-1])


def end_all() -> None:
    """Ends all processes that threads wait for, which raise `ChildError`."""
    for pid in list(_running):
        end_group(pid)


def end_group(pid: int) -> None:
    """Ends a process that leads a group, and all of the group: compilers start processes of their own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _last_line(text: str) -> str:
    """What a traceback ends with, which is the exception."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    exceptions = [line for line in lines if line.partition(":")[0].rpartition(".")[2].endswith(("Error", "Exception"))]
    return (exceptions or lines or [""])[-1][:500]
