"""Why something is compiled or executed now: what the user's code has called.

Modules whose functions execute what is pending say so here, in PyTorch/XLA's words; debug reports look the words up.
What `import torch` runs says so too, so this module imports nothing of torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

_called: dict[tuple[str, str], str] = {}  # (file, function or "" for all) → the cause
_running: dict[str, str] = {}  # file → the cause, whoever has called it
_READ = "most likely user code trying to access tensor value before torch_xla.sync"


def register(file: str, cause: str, function: str = "") -> None:
    """Says what an execution is called that the user has caused by calling something of a file.

    Args:
        file: its full name.
        cause: the words.
        function: the one that they are true of; empty for all functions of the file.
    """
    _called[file, function] = cause


def register_running(file: str, cause: str) -> None:
    """Says what is going on while something of a file runs, whoever has called it."""
    _running[file] = cause


def current(is_ours: Callable[[str], bool]) -> str:
    """The cause of what the calling thread is about to do: of all files between it and the user's code, the outermost
    one's, or what is running.

    Args:
        is_ours: whether a file is none of the user's (`source_locations.is_ours`).
    """
    found = _READ
    for file, function in _frames():
        if file in _running:
            return _running[file]
        cause = _called.get((file, "")) or _called.get((file, function))
        if cause is None and not is_ours(file):
            break  # the user's code
        found = cause or found
    return found


def _frames() -> Iterator[tuple[str, str]]:
    frame = sys._getframe(2)
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_code.co_name
        frame = frame.f_back  # type: ignore[assignment]
