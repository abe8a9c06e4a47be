"""Where the libraries of the C++ part are, and how they come there if no installation has built them.

An installation builds them into the package's folder where torch and a compiler were there already. For a torch that
came later, or another one, the first use of xla builds them into the user's cache, once for each version of torch, of
Python and of these sources.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.metadata
import os
import stat
import sys
import sysconfig
import threading
import warnings
from pathlib import Path

from . import build
from .build import BuildError, library_name

HERE = Path(__file__).resolve().parent

_lock = threading.RLock()
_failure: NativeError | None = None


class NativeError(RuntimeError):
    """The C++ part is not there and could not be built; the message says what to do."""


@functools.cache
def torch_version() -> str:
    """What is installed, from its metadata: to read them takes longer than to load a library."""
    return importlib.metadata.version("torch")


def find(stem: str, version: str) -> Path | None:
    """The library of that name for a version of torch: the package's own, or the user's."""
    name = library_name(stem, version)
    if (HERE / name).exists():
        return HERE / name
    folder = cache()
    return folder / name if folder is not None and (folder / name).exists() else None


def load(stem: str, version: str, kind: type[ctypes.CDLL] = ctypes.CDLL) -> ctypes.CDLL:
    """Loads a library, built first if it is missing.

    Raises:
        NativeError: it cannot be built or loaded.
    """
    path = find(stem, version)
    if path is None:
        ensure(version)
        path = find(stem, version)
    if path is None:
        raise NativeError(
            f"{library_name(stem, version)} needs Python.h, which is not there: install Python's headers, "
            "run `python -m lazy_runtime.native` and start again"
        )
    try:
        return kind(str(path))
    except OSError as error:
        raise NativeError(
            f"{path} does not load ({error}): delete it, run `python -m lazy_runtime.native` and start again"
        ) from error


def ensure(version: str | None = None) -> None:
    """Builds what is missing for a version of torch, by default the installed one. Other processes and threads that
    want the same wait meanwhile. A failure stands for the rest of the process.

    Raises:
        NativeError: there is no compiler or it fails, or there is no folder to build in.
    """
    global _failure
    version = version or torch_version()
    wanted = build.stems()
    if any(stem not in wanted for stem in build.PYTHON):
        _say_what_is_slow()
    if all(find(stem, version) for stem in wanted):
        return
    with _lock:
        if _failure is not None:
            raise _failure
        try:
            _build(version, wanted)
        except (BuildError, OSError) as error:
            _failure = NativeError(
                f"the C++ part of lazy_runtime is not built for torch {version}, and could not be built now: {error}"
            )
            raise _failure from error


def _build(version: str, wanted: tuple[str, ...]) -> None:
    from filelock import FileLock, Timeout

    folder = writable()
    lock = FileLock(folder / ".build.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        _say("waiting for another process, which builds the C++ part")
        lock.acquire()
    try:
        missing = [stem for stem in wanted if not find(stem, version)]
        if missing:
            _say(f"building the C++ part for torch {version} in {folder}, once; this takes some minutes of each core")
            build.build(folder, missing, lambda stem, done: _say(f"built {stem} ({done} of {len(missing)})"))
    finally:
        lock.release()


def writable() -> Path:
    """The folder to build in: a checkout's own, else the user's cache, which is made.

    Raises:
        BuildError: others can write there.
        OSError: it cannot be made.
    """
    if (HERE.parents[1] / "setup.py").exists() and os.access(HERE, os.W_OK):
        return HERE
    folder = _cache()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not _is_own(folder):
        raise BuildError(f"{folder} can be written by other users: give it to yourself alone, or set XDG_CACHE_HOME")
    return folder


@functools.cache
def _is_own(folder: Path) -> bool:
    found = folder.stat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def cache() -> Path | None:
    """The user's cache of libraries that were built from these sources; None where there is none yet, or another user
    could have written it.
    """
    try:
        folder = _cache()
        return folder if folder.is_dir() and _is_own(folder) else None
    except (OSError, RuntimeError):  # there is no home directory
        return None


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    # the specification has relative paths ignored
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "lazy_runtime" / "native" / sources()


@functools.cache
def sources() -> str:
    digest = hashlib.sha256(f"{sysconfig.get_platform()} {sys.byteorder}".encode())
    for path in sorted([*HERE.glob("*.cpp"), *HERE.glob("*.h"), HERE / "build.py"]):
        digest.update(f"{path.name}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def _say_what_is_slow() -> None:
    warnings.warn(
        "lazy_runtime: operators are recorded in Python, which takes longer, since Python.h was not found: install "
        "Python's headers, then run `python -m lazy_runtime.native`",
        RuntimeWarning,
        stacklevel=3,
    )


def _say(what: str) -> None:
    sys.stderr.write(f"lazy_runtime: {what}\n")
    sys.stderr.flush()
