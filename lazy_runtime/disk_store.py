"""A directory of entries that many processes read and write, any of which may be killed at any moment.

An entry is a file: a magic line, the digest of all that follows, a header in JSON, and the payload. It is written under
another name and renamed, so that nobody sees half of one; what the file system has torn all the same, the digest tells.
Because payloads are handed to pickle, nothing is read from a place that others can write to.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
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
_ABANDONED_S = 3600.0  # a file that is still being written by then has lost its writer

#: Eviction goes down to this part of the bound, so that not every write evicts.
_ROOM = 0.9


class UnsafeError(Exception):
    """The directory or a file in it could have been written by somebody else; the message says what to do."""


class TornError(Exception):
    """A file is not what was written."""


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
        UnsafeError: others can write to the directory.
        OSError: it cannot be made, or there is none to read.
    """

    def __init__(self, path: str | os.PathLike[str], bound: int, readonly: bool = False):
        self.path = Path(path)
        self.bound = bound
        self.readonly = readonly
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
            UnsafeError: somebody else may have written it.
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
        descriptor = os.open(self.path / (name + SUFFIX), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if found.st_uid not in (os.geteuid(), *((0,) if self.readonly else ())) or found.st_mode & 0o022:
                raise UnsafeError(f"{name}{SUFFIX} in {self.path} can be written by other users")
            return file.read()

    def write(self, name: str, header: Mapping[str, Any], payload: bytes) -> int:
        """Keeps an entry; one of that name is replaced. Returns its size in bytes, 0 if it is larger than the bound.

        Raises:
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
        if not self.readonly:
            with contextlib.suppress(OSError):
                (self.path / (name + SUFFIX)).unlink()

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

        try:
            with FileLock(self.path / "eviction.lock", timeout=0, mode=0o600):
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
                if item.name.endswith(SUFFIX):
                    entries.append((found.st_mtime, found.st_size, item.path))
                elif item.name.endswith(_TEMPORARY) and now - found.st_mtime > _ABANDONED_S:
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


def _pack(header: Mapping[str, Any], payload: bytes) -> bytes:
    text = json.dumps(header).encode()
    body = len(text).to_bytes(_LENGTH_SIZE, "little") + text + payload
    return MAGIC + hashlib.sha256(body).digest() + body


def _unpack(content: bytes) -> Entry:
    """Raises:
    TornError: it was not made by `_pack`, or has changed since.
    """
    start = len(MAGIC) + _DIGEST_SIZE
    body = memoryview(content)[start:]
    if not content.startswith(MAGIC) or hashlib.sha256(body).digest() != content[len(MAGIC) : start]:
        raise TornError(f"{len(content)} bytes that are not what was written")
    length = int.from_bytes(body[:_LENGTH_SIZE], "little")
    text = bytes(body[_LENGTH_SIZE : _LENGTH_SIZE + length])
    return Entry(json.loads(text), bytes(body[_LENGTH_SIZE + length :]))
