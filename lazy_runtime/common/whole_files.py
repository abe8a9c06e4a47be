"""Files that are replaced as a whole: whoever reads one, finds what was there before or all of what comes after it,
whenever the process that writes is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[str]:
    """Where to write what is to be a file afterwards: another one of the same name, in a folder beside it.

    The file's permissions are those that `open(path, "wb")` would have given or left it, and a link is followed. What
    is no file (a pipe), or lies where none can be made beside it, is written to directly.

    Raises:
        OSError: as `open` does, for a file that must not be written to.
    """
    target = os.path.realpath(path)
    folder, name = os.path.split(target)
    is_file = os.path.isfile(target)
    if is_file:
        open(target, "r+b").close()  # which raises where it must not be written to
    made = _made(folder, name) if is_file or not os.path.exists(target) else None
    if made is None:
        yield os.fspath(path)
        return
    unfinished, lock = made
    try:
        written = os.path.join(unfinished, name)
        yield written
        if is_file:
            shutil.copymode(target, written)
        flush(written)
        os.replace(written, target)
        with contextlib.suppress(OSError):  # there are file systems without it
            flush(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        os.close(lock)
    _clean(folder, name)


def flush(path: str) -> None:
    """Waits until a file's data, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _prefix(name: str) -> str:
    return f".{name[:40]}.unfinished-"


def _made(folder: str, name: str) -> tuple[str, int] | None:
    """A new folder, locked while this process lives, and the lock's descriptor; None where none can be made."""
    while True:
        try:
            made = tempfile.mkdtemp(prefix=_prefix(name), dir=folder)
        except (PermissionError, FileNotFoundError):
            return None
        with contextlib.suppress(FileNotFoundError):  # another process has removed it before it was locked
            lock = os.open(made, os.O_RDONLY)
            with contextlib.suppress(OSError):  # there are file systems without locks: nothing is removed there
                fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.isdir(made):
                return made, lock
            os.close(lock)


def _clean(folder: str, name: str) -> None:
    """Removes what killed processes have left of a file."""
    for each in os.listdir(folder):
        if each.startswith(_prefix(name)):
            left = os.path.join(folder, each)
            with contextlib.suppress(OSError):  # it is being written, or somebody else removes it
                lock = os.open(left, os.O_RDONLY)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(left)
                finally:
                    os.close(lock)
