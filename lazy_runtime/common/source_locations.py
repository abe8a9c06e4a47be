"""Lines of the user's program: where an operator was recorded, a value read, a program compiled."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple

import torch
import typing_extensions

from . import environment, output

_OURS = [os.path.dirname(file) + os.sep for file in (torch.__file__, os.path.dirname(__file__))]
_ours: dict[str, bool] = {  # file → see `is_ours`
    contextlib.__file__: True,
    functools.__file__: True,
    # around what torch deprecates; from Python 3.13 on it is in a file of Python's
    typing_extensions.deprecated.__call__.__code__.co_filename: True,
}

#: Whether every recorded operator keeps its line (`PT_XLA_DEBUG_LEVEL`), and its whole stack (`XLA_IR_DEBUG`).
keep_stacks = environment.value("XLA_IR_DEBUG") or environment.value("XLA_HLO_DEBUG")
keep = keep_stacks or output.level() > 0 or output.is_logged("xla_recompiles")


def skip(directory: str) -> None:
    """Makes the files of a directory none of the user's."""
    _OURS.append(directory + os.sep)
    for file in [file for file, is_ours in _ours.items() if not is_ours]:
        del _ours[file]


class Line(NamedTuple):
    """A line of the user's program.

    Attributes:
        file: its full name.
        number: from 1.
        function: the function that it stands in.
    """

    file: str
    number: int
    function: str

    def __str__(self) -> str:
        """`train.py:41`, relative to the working directory where the file is below it."""
        return f"{short(self.file)}:{self.number}"


def short(file: str) -> str:
    """The file's name as people write it."""
    inside = file.startswith(os.getcwd() + os.sep)
    return os.path.relpath(file) if inside else os.path.basename(file)


def is_ours(file: str) -> bool:
    """Whether code of this file is torch's or this package's, or a decorator's that stands between these and the
    user's: users do not look for it in reports.
    """
    found = _ours.get(file)
    if found is None:
        found = _ours[file] = file.startswith((*_OURS, "<frozen "))  # runpy, which runs scripts
    return found


def here() -> Line | None:
    """The innermost frame outside of torch and this package; None where there is none, as on autograd's threads."""
    return of_frame(sys._getframe(1))


def of_frame(frame: FrameType | None) -> Line | None:
    """The same for a frame and those that have called it."""
    while frame is not None:
        code = frame.f_code
        if not is_ours(code.co_filename):
            return Line(code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back
    return None


def stack() -> list[Line]:
    """The frames outside of torch and this package, innermost first."""
    found = []
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not is_ours(code.co_filename):
            found.append(Line(code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back  # type: ignore[assignment]
    return found


def parse(text: str) -> Line | None:
    """The line that `errors.user_line` wrote."""
    found = _LINE.match(text)
    return Line(found["file"], int(found["number"]), found["function"]) if found else None


_LINE = re.compile(r'File "(?P<file>[^"]*)", line (?P<number>\d+), in (?P<function>[^:]*)')


class _Scopes(threading.local):
    names: tuple[str, ...] = ()
    number = 1


_scopes = _Scopes()


@contextlib.contextmanager
def scope(name: str) -> Iterator[None]:
    """What the calling thread records meanwhile belongs to a part of the program of this name."""
    outer, number = _scopes.names, _scopes.number
    _scopes.names, _scopes.number = (*outer, f"{name}.{number}"), 1
    try:
        yield
    finally:
        _scopes.names, _scopes.number = outer, number + 1


def current_scope() -> str:
    """`step.1/forward.2`, the numbers counting the parts of one part, as PyTorch/XLA has it; empty outside of all."""
    return "/".join(_scopes.names)


def reset_scopes() -> None:
    """Counts anew, as from the beginning of a step."""
    if not _scopes.names:
        _scopes.number = 1
