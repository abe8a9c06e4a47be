"""Compiled programs on disk, so that a later process starts without compiling, tracing or lowering them.

On by default, in `~/.cache/lazy_runtime/xla` (below `XDG_CACHE_HOME` if that is set) up to 2 GiB.
`XLA_PERSISTENT_CACHE_PATH` moves it and `=0` turns it off, `XLA_PERSISTENT_CACHE_READ_ONLY=1` writes nothing,
`XLA_PERSISTENT_CACHE_MAX_BYTES` sets the bound. `initialize` does the first two from a script.

Counters and metrics are PyTorch/XLA's: `PersistentCacheHit`, `PersistentCacheMiss` and
`PersistentCacheDeserializeFailure`, and the times `PersistentCacheLoad` and `PersistentCacheStore`. Of our own there
are `PersistentCacheUncacheable` and `PersistentCacheMiss::why`. `lookups` has the reasons in words.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax

from ..common import environment, metrics, notices, output
from . import disk_key, disk_program
from .disk_store import Entry, OccupiedError, Store, TornError, UnsafeError

if TYPE_CHECKING:
    from ..ir.graph import Graph

_logger = logging.getLogger(__name__)


class Lookup(NamedTuple):
    """One program that was looked for.

    Attributes:
        program: what the graph consists of, shortened.
        outcome: whether it was found, or can be kept at all.
        reason: why not.
        seconds: what finding and loading it took.
        bytes: size of its payload.
    """

    program: str
    outcome: Literal["hit", "miss", "uncacheable"]
    reason: str
    seconds: float
    bytes: int

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else f", {self.bytes / 1e3:.0f} kB in {1e3 * self.seconds:.0f} ms"
        return f"cache on disk: {self.outcome}{why}: {self.program}"


_lookups: deque[Lookup] = deque(maxlen=1000)


def lookups() -> list[Lookup]:
    """The last thousand programs that this process has looked for on disk, oldest first."""
    return list(_lookups)


class Place:
    """Where one program is on disk, or would be."""

    def __init__(self, store: Store, key: disk_key.Key, graph: Graph):
        self._store = store
        self._key = key
        self._graph = graph
        self._name = f"{key.program[:32]}-{key.environment_digest[:16]}"

    def is_taken(self) -> bool:
        """Whether there is something, which most likely will load."""
        return self._store.has(self._name)

    def load(self) -> disk_program.Loaded | None:
        """The program, or None if it must be compiled."""
        start = time.perf_counter()
        try:
            entry = self._read()
        except (TornError, UnsafeError, OSError) as error:
            _warn(f"the compiled program {self._name} cannot be used and is compiled again: {error}")
            return self._missed("unreadable", str(error), start)
        if entry is None:
            return self._missed(*self._why(), start)
        try:
            loaded = disk_program.load(entry, self._graph)
        except Exception as error:  # whatever pickle, jax and XLA may say
            metrics.count("PersistentCacheDeserializeFailure")
            self._store.remove(self._name)
            _warn(f"the compiled program {self._name} does not load and is compiled again: {error}")
            return self._missed("does_not_load", str(error), start)
        metrics.count("PersistentCacheHit")
        metrics.record("PersistentCacheLoad", (time.perf_counter() - start) * 1e9)
        _note(self._graph, "hit", "", start, len(entry.payload))
        return loaded

    def _read(self) -> Entry | None:
        entry = self._store.read(self._name)
        if entry is not None:
            found = entry.header.get("program"), entry.header.get("environment")
            if found != (self._key.program, self._key.environment):
                raise TornError("it is another program's")
        return entry

    def _why(self) -> tuple[str, str]:
        headers = self._store.headers(self._key.program[:32])
        found = [each for header in headers if isinstance(each := header.get("environment"), dict)]
        if not found:
            return "new", "no entry"
        differences = [disk_key.difference(self._key.environment, other) for other in found]
        return "other_environment", min(differences, key=len)

    def _missed(self, kind: str, reason: str, start: float) -> None:
        metrics.count("PersistentCacheMiss")
        metrics.count(f"PersistentCacheMiss::{kind}")
        _note(self._graph, "miss", reason, start, 0)

    def store(
        self, lowered: jax.stages.Lowered, compiled: jax.stages.Compiled, physical: Iterable[int], checks: int
    ) -> None:
        """Keeps the program for later processes, where it means something to them."""
        if self._store.readonly:
            return
        with metrics.timed("PersistentCacheStore"):
            self._keep(lowered, compiled, physical, checks)

    def _keep(
        self, lowered: jax.stages.Lowered, compiled: jax.stages.Compiled, physical: Iterable[int], checks: int
    ) -> None:
        try:
            described, payload = disk_program.dump(lowered, compiled, physical, checks)
        except disk_key.UncacheableError as error:
            _uncacheable(self._graph, str(error))
            return
        header = {"program": self._key.program, "environment": self._key.environment, **described}
        try:
            self._store.write(self._name, header, payload)
        except OccupiedError as error:
            _logger.info("a compiled program is not kept: %s", error)
        except OSError as error:
            _close(f"the cache of compiled programs cannot be written and is off from here on: {error}")


def find(graph: Graph, keep_layout: frozenset[int] | None, options: Mapping[str, Any]) -> Place | None:
    """Where the program is kept; None if the cache is off or the program cannot be kept.

    Args:
        options: what XLA is given to compile it, on top of its own flags.
    """
    opened = store()
    if opened is None:
        return None
    try:
        return Place(opened, disk_key.key(graph, keep_layout, options), graph)
    except disk_key.UncacheableError as error:
        _uncacheable(graph, str(error))
        return None


# ---- the store of this process


class _Settings(NamedTuple):
    path: str | None  # None: the default place
    readonly: bool


_lock = threading.Lock()
_given: _Settings | None = None
_opened: Store | None = None
_is_open = False


def initialize(path: str, readonly: bool = False) -> None:
    """`xr.initialize_cache`: keeps compiled programs in `path`, instead of where the environment says.

    Args:
        path: a directory; it is made if it is not there, for its owner alone.
        readonly: use what is there, and write nothing.

    Raises:
        RuntimeError: a program has been compiled already.
        ValueError: the path is empty.
    """
    global _given
    path = os.fspath(path)
    if not path:
        raise ValueError("initialize_cache needs a directory to keep compiled programs in, got an empty path")
    with _lock:
        if _is_open:
            raise RuntimeError(
                "the cache of compiled programs is in use already: call initialize_cache before any computation"
            )
        _given = _Settings(path, readonly)


def is_initialized() -> bool:
    """Whether it is too late for `initialize`."""
    return _is_open


def directory() -> Path | None:
    """Where compiled programs are kept; None if they are not. Asking counts as a first use."""
    opened = store()
    return None if opened is None else opened.path


def store() -> Store | None:
    """What this process keeps on disk; None if that is off. Asking counts as a first use."""
    global _is_open, _opened
    if not _is_open:
        with _lock:
            if not _is_open:
                _opened = _open(_given or _from_environment())
                _is_open = True
    return _opened


def _from_environment() -> _Settings:
    path: str | None = environment.value("XLA_PERSISTENT_CACHE_PATH")
    return _Settings(path, environment.value("XLA_PERSISTENT_CACHE_READ_ONLY"))


def _open(settings: _Settings) -> Store | None:
    if settings.path == "0":
        return None
    if "--xla_dump_to" in os.environ.get("XLA_FLAGS", ""):  # what is not compiled is not dumped
        _logger.info("the cache of compiled programs is off, because XLA_FLAGS asks for dumps of what is compiled")
        return None
    try:
        path = _default_path() if settings.path is None else Path(settings.path).expanduser()
        return Store(path, environment.value("XLA_PERSISTENT_CACHE_MAX_BYTES"), settings.readonly)
    except UnsafeError as error:
        _warn(f"the cache of compiled programs is off: {error}")
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home directory
        if settings.path is None:  # nobody asked for it
            _logger.info("the cache of compiled programs is off: %s", error)
        else:
            _warn(f"the cache of compiled programs is off: {error}")
    return None


def _default_path() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    # the specification has relative paths ignored
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "lazy_runtime" / "xla"


def _close(reason: str) -> None:
    global _opened
    with _lock:
        was_open, _opened = _opened is not None, None
    if was_open:
        _warn(reason)


# ---- what is told


def _note(graph: Graph, outcome: Literal["hit", "miss", "uncacheable"], reason: str, start: float, size: int) -> None:
    names = [call.name.removeprefix("aten::") for call in graph.calls[:3]]
    what = f"{len(graph.calls)} operators ({', '.join(names)}{', ...' if len(graph.calls) > 3 else ''})"
    found = Lookup(what, outcome, reason, time.perf_counter() - start, size)
    _lookups.append(found)
    output.log("xla_cache", str(found))


def _uncacheable(graph: Graph, reason: str) -> None:
    metrics.count("PersistentCacheUncacheable")
    _note(graph, "uncacheable", reason, time.perf_counter(), 0)


def _warn(message: str) -> None:
    notices.tell(f"lazy_runtime: {message}")
