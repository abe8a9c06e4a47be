"""A directory of entries that many processes read and write, any of which may be killed at any moment.

An entry is a file: a magic line, the digest of all that follows, a header in JSON, and the payload. It is written under
another name and renamed, so that nobody sees half of one; what the file system has torn all the same, the digest tells.
Because payloads are handed to pickle, nothing is read from a place that others can write to.

The user may name a directory that has other files. Eviction removes a file only if its name and its first bytes are
those of an entry, and if it is a regular file of this user.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

MAGIC = b"lazy_runtime 1\n"
_DIGEST_SIZE = hashlib.sha256().digest_size
_LENGTH_SIZE = 8
SUFFIX = ".xla"
_TEMPORARY = ".tmp"
_ENTRY_NAME = re.compile(r"\w+(-[0-9a-f]+)?\.xla")
_TEMPORARY_NAME = re.compile(r"\w+(-[0-9a-f]+)?\.[0-9]+\.[0-9a-f]{8}\.tmp")
_ABANDONED_S = 3600.0  # a file that is still being written by then has lost its writer

#: No program takes so many bytes: a file that does is not read into memory.
_LARGEST = 1 << 32

#: The opening of a pipe that nobody writes to would block without the last.
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

#: Eviction goes down to this part of the bound, so that not every write evicts.
_ROOM = 0.9


class UnsafeError(Exception):
    """The directory or a file in it could have been written by somebody else; the message says what to do."""


class TornError(Exception):
    """A file is not what was written."""


class OccupiedError(OSError):
    """Something that is no entry has the place of one: a directory, a link, a pipe, a file of another user."""


class Entry(NamedTuple):
    """What is kept under one name.

    Attributes:
        header: anything that JSON has.
        payload: bytes.
    """

    header: Mapping[str, Any]
    payload: bytes


class Store:
    """Entries by name in a directory, the least recently used of which make room for new ones.

    Args:
        path: the directory. It is made, for its owner alone, unless `readonly`.
        bound: bytes that the entries may take together; a moment's excess is possible.
        readonly: nothing is written, and the directory may be root's.

    Raises:
        UnsafeError: others can write to the directory, or exchange a link that leads to it.
        OSError: it cannot be made, or there is none to read.
    """

    def __init__(self, path: str | os.PathLike[str], bound: int, readonly: bool = False):
        self.path = Path(path)
        self.bound = bound
        self.readonly = readonly
        _check_links(self.path)
        if not readonly:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._check_directory()
        self._size: int | None = None  # bytes when this process looked last; None: it has not yet
        self._written = 0  # bytes since then

    def _check_directory(self) -> None:
        found = self.path.stat()
        if not stat.S_ISDIR(found.st_mode):
            raise UnsafeError(f"{self.path} is not a directory")
        me = os.geteuid()
        if found.st_uid != me and not (self.readonly and found.st_uid == 0):
            raise UnsafeError(f"{self.path} belongs to user {found.st_uid}, not to this process's ({me})")
        forbidden = 0o022 if self.readonly else 0o077
        if found.st_mode & forbidden:
            raise UnsafeError(f"{self.path} is open to other users: run `chmod 700 {self.path}`")

    def has(self, name: str) -> bool:
        """Whether there is an entry of that name, readable or not."""
        return (self.path / (name + SUFFIX)).exists()

    def read(self, name: str) -> Entry | None:
        """The entry, or None if there is none.

        Raises:
            TornError: the file is not what was written; unless `readonly` it is gone now.
            UnsafeError: somebody else may have written it, or it is no file.
            OSError: it cannot be read.
        """
        try:
            content = self._content(name)
        except FileNotFoundError:
            return None
        try:
            entry = _unpack(content)
        except TornError:
            self.remove(name)
            raise
        if not self.readonly:
            with contextlib.suppress(OSError):
                os.utime(self.path / (name + SUFFIX))  # its time of use; atime is off on many file systems
        return entry

    def _content(self, name: str) -> bytes:
        with _opened(os.open(self.path / (name + SUFFIX), _READING)) as descriptor:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise UnsafeError(f"{name}{SUFFIX} in {self.path} is not a regular file")
            if found.st_uid not in (os.geteuid(), *((0,) if self.readonly else ())) or found.st_mode & 0o022:
                raise UnsafeError(f"{name}{SUFFIX} in {self.path} can be written by other users")
            if found.st_size > _LARGEST:
                raise TornError(f"{found.st_size} bytes, more than an entry has")
            with open(descriptor, "rb", closefd=False) as file:
                return file.read()

    def write(self, name: str, header: Mapping[str, Any], payload: bytes) -> int:
        """Keeps an entry; one of that name is replaced. Returns its size in bytes, 0 if it is larger than the bound.

        Raises:
            OccupiedError: what is there under that name is not an entry, and stays.
            OSError: the disk is full, or the directory is gone.
        """
        content = _pack(header, payload)
        if len(content) > self.bound * _ROOM:
            return 0
        temporary = self.path / f"{name}.{os.getpid()}.{secrets.token_hex(4)}{_TEMPORARY}"
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(content)
            if not self._may_remove(self.path / (name + SUFFIX)):
                raise OccupiedError(f"{self.path / (name + SUFFIX)} is not a file of this user")
            # not flushed to the disk first: what a power cut leaves is told by its digest
            os.replace(temporary, self.path / (name + SUFFIX))
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        self._written += len(content)
        # others write too, so it looks again before it has written much itself
        if self._size is None or self._written > min(self.bound - self._size, self.bound // 16):
            self.evict()
        return len(content)

    def remove(self, name: str) -> None:
        """Forgets an entry, if this store may write."""
        path = self.path / (name + SUFFIX)
        if not self.readonly and self._may_remove(path):
            with contextlib.suppress(OSError):
                path.unlink()

    @staticmethod
    def _may_remove(path: Path) -> bool:
        """Whether nothing is there, or a regular file of this user."""
        try:
            found = path.lstat()
        except FileNotFoundError:
            return True
        return _is_own_file(found)

    def headers(self, prefix: str) -> Iterator[Mapping[str, Any]]:
        """The headers of the entries whose names begin so, unverified: for explanations."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.path):
                if name.startswith(prefix) and name.endswith(SUFFIX):
                    with contextlib.suppress(OSError, UnsafeError, TornError):
                        yield _unpack(self._content(name.removesuffix(SUFFIX))).header

    def evict(self) -> None:
        """Removes the least recently used entries beyond the bound, and what killed writers have left.

        One process does it at a time; the others leave it to that one.
        """
        from filelock import FileLock, Timeout

        lock = self.path / "eviction.lock"
        if not self._may_remove(lock):  # opening it would follow a link
            self._size, self._written = self._size or 0, 0
            return
        try:
            with FileLock(lock, timeout=0, mode=0o600):
                self._evict()
        except (Timeout, OSError, NotImplementedError):  # the last: a file system without locks
            self._size = self._size or 0
        self._written = 0

    def _evict(self) -> None:
        entries: list[tuple[float, int, str]] = []
        now = time.time()
        for item in os.scandir(self.path):
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                found = item.stat(follow_symlinks=False)
                if not _is_own_file(found):
                    continue
                if _ENTRY_NAME.fullmatch(item.name):
                    if _beginning(item.path) == MAGIC:
                        entries.append((found.st_mtime, found.st_size, item.path))
                    continue
                is_abandoned = _TEMPORARY_NAME.fullmatch(item.name) and now - found.st_mtime > _ABANDONED_S
                if is_abandoned and MAGIC.startswith(_beginning(item.path)):  # maybe all that the writer came to write
                    os.unlink(item.path)
        size = sum(entry[1] for entry in entries)
        if size > self.bound:
            for _, each, path in sorted(entries):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                size -= each
                if size <= self.bound * _ROOM:
                    break
        self._size = size


def _check_links(path: Path) -> None:
    """Refuses a path that others may have led elsewhere.

    Raises:
        UnsafeError: the path leads through a link that others may have put there.
    """
    for place in (path, *path.parents):
        with contextlib.suppress(FileNotFoundError):  # it is about to be made
            if not stat.S_ISLNK(place.lstat().st_mode):
                continue
            parent = place.parent.stat()
            if place.lstat().st_uid not in (os.geteuid(), 0) or parent.st_mode & 0o022:
                raise UnsafeError(
                    f"{place} is a symbolic link that other users can make: give the directory that it leads to, "
                    f"{os.path.realpath(place)}"
                )


def _is_own_file(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()


def _beginning(path: str) -> bytes:
    """As many bytes of a regular file as an entry's magic line has; something else if it cannot be read."""
    try:
        with _opened(os.open(path, _READING)) as descriptor:
            return os.read(descriptor, len(MAGIC))
    except OSError:
        return b"?"


@contextlib.contextmanager
def _opened(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _pack(header: Mapping[str, Any], payload: bytes) -> bytes:
    text = json.dumps(header).encode()
    body = len(text).to_bytes(_LENGTH_SIZE, "little") + text + payload
    return MAGIC + hashlib.sha256(body).digest() + body


def _unpack(content: bytes) -> Entry:
    """Takes the content of a file apart.

    Raises:
        TornError: it was not made by `_pack`, or has changed since.
    """
    start = len(MAGIC) + _DIGEST_SIZE
    body = memoryview(content)[start:]
    if not content.startswith(MAGIC) or hashlib.sha256(body).digest() != content[len(MAGIC) : start]:
        raise TornError(f"{len(content)} bytes that are not what was written")
    length = int.from_bytes(body[:_LENGTH_SIZE], "little")
    text = bytes(body[_LENGTH_SIZE : _LENGTH_SIZE + length])
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TornError(f"its header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise TornError(f"its header is a {type(header).__name__}, not an object")
    return Entry(header, bytes(body[_LENGTH_SIZE + length :]))
