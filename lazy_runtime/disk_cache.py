"""Compiled programs on disk, so that a later process starts without compiling, tracing or lowering them.

On by default, in `~/.cache/lazy_runtime/xla` (below `XDG_CACHE_HOME` if that is set) up to 2 GiB.
`XLA_PERSISTENT_CACHE_PATH` moves it and `=0` turns it off, `XLA_PERSISTENT_CACHE_READ_ONLY=1` writes nothing,
`XLA_PERSISTENT_CACHE_MAX_BYTES` sets the bound. `initialize` does the first two from a script.

Counters and metrics are PyTorch/XLA's: `PersistentCacheHit`, `PersistentCacheMiss` and
`PersistentCacheDeserializeFailure`, and the times `PersistentCacheLoad` and `PersistentCacheStore`; of our own there are
`PersistentCacheUncacheable` and `PersistentCacheMiss::why`. `lookups` has the reasons in words.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
from jax.experimental import serialize_executable
from jaxlib.mlir import ir

from . import aten_bridge, disk_key, dtypes, environment, metrics
from .debug import output
from .disk_store import Entry, Store, TornError, UnsafeError

if TYPE_CHECKING:
    from .ir import Graph

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
        why = f" ({self.reason})" if self.reason else f", {self.bytes / 1e6:.1f} MB in {1e3 * self.seconds:.0f} ms"
        return f"cache on disk: {self.outcome}{why}: {self.program}"


_lookups: deque[Lookup] = deque(maxlen=1000)


def lookups() -> list[Lookup]:
    """The last thousand programs that this process has looked for on disk, oldest first."""
    return list(_lookups)


class Loaded(NamedTuple):
    """What is known of a program that came from the disk.

    Attributes:
        compiled: jax's callable.
        physical: numbers of the results that are channels last.
        checks: how many checks it makes.
    """

    compiled: jax.stages.Compiled
    physical: frozenset[int]
    checks: int


class Place:
    """Where one program is on disk, or would be."""

    def __init__(self, store: Store, key: disk_key.Key, graph: Graph):
        self._store = store
        self._key = key
        self._graph = graph
        self._name = f"{key.program[:32]}-{key.environment_digest[:16]}"

    def load(self) -> Loaded | None:
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
            loaded = _deserialize(entry, self._graph)
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
        if entry is not None and (
            entry.header["program"] != self._key.program or entry.header["environment"] != self._key.environment
        ):
            raise TornError("it is another program's")
        return entry

    def _why(self) -> tuple[str, str]:
        found = [header.get("environment", {}) for header in self._store.headers(self._key.program[:32])]
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
            targets = _custom_calls(lowered)
            payload = _serialize(compiled)
        except disk_key.UncacheableError as error:
            _uncacheable(self._graph, str(error))
            return
        header = {
            "program": self._key.program,
            "environment": self._key.environment,
            "physical": sorted(physical),
            "checks": checks,
            "custom_calls": targets,
        }
        try:
            self._store.write(self._name, header, payload)
        except OSError as error:
            _close(f"the cache of compiled programs cannot be written and is off from here on: {error}")


def find(graph: Graph, keep_layout: frozenset[int] | None, options: Mapping[str, Any]) -> Place | None:
    """Where the program is kept; None if the cache is off or the program cannot be kept.

    Args:
        options: what XLA is given to compile it, on top of its own flags.
    """
    store = _store()
    if store is None:
        return None
    try:
        return Place(store, disk_key.key(graph, keep_layout, options), graph)
    except disk_key.UncacheableError as error:
        _uncacheable(graph, str(error))
        return None


# ---- an executable as bytes


def _serialize(compiled: jax.stages.Compiled) -> bytes:
    try:
        return serialize_executable.serialize(compiled)[0]
    except Exception as error:  # a platform that cannot, Python objects that are part of the program
        raise disk_key.UncacheableError(f"it cannot be serialized: {error}") from error


def _deserialize(entry: Entry, graph: Graph) -> Loaded:
    header = entry.header
    _prepare(header["custom_calls"])
    arguments = len(graph.leaves) + (graph.floats > 0) + (graph.ints > 0)
    results = len(graph.outputs) + (header["checks"] > 0)
    with dtypes.x64():
        compiled = serialize_executable.deserialize_and_load(
            entry.payload,
            jax.tree.structure(((0,) * arguments, {})),
            jax.tree.structure([0] * results),
            backend=graph.device.jax_device.client,
            execution_devices=[graph.device.jax_device],
        )
    return Loaded(compiled, frozenset(header["physical"]), header["checks"])


# A program calls what is outside of XLA by name. A later process has it under that name if jax or we register it, at
# import or in `_prepare`. Host callbacks are none of these: they are objects of the process that made them.
_KNOWN_TARGETS = ("aten_call", "lapack_", "cusolver_", "cublas_", "cusparse_", "cu_", "mhlo.", "chlo.")
_KNOWN_EXACTLY = frozenset({"Sharding", "TopK", "ApproxTopK", "annotate_device_placement"})


def _custom_calls(lowered: jax.stages.Lowered) -> list[str]:
    """The targets of a program's custom calls.

    Raises:
        UncacheableError: one of them is not there, or means something else, in a later process.
    """
    found: set[str] = set()

    def visit(operation: Any) -> Any:
        if operation.name == "stablehlo.custom_call":
            found.add(operation.attributes["call_target_name"].value)
        return ir.WalkResult.ADVANCE

    module: Any = lowered.compiler_ir("stablehlo")
    module.operation.walk(visit)
    for target in found:
        if target not in _KNOWN_EXACTLY and not target.startswith(_KNOWN_TARGETS):
            raise disk_key.UncacheableError(f"it calls {target}, which belongs to this process")
    return sorted(found)


def _prepare(targets: Sequence[str]) -> None:
    """Makes sure that a program finds what it calls: tracing, which does so otherwise, has not taken place.

    Raises:
        RuntimeError: it is not to be had.
    """
    if "aten_call" in targets and not aten_bridge.available():
        raise RuntimeError("it calls torch's kernels, and the ATen bridge is not built")
    if any(target.startswith("lapack_") for target in targets):
        from jax._src.lax import linalg

        linalg.initialize_lapack()


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
    """
    global _given
    with _lock:
        if _is_open:
            raise RuntimeError(
                "the cache of compiled programs is in use already: call initialize_cache before any computation"
            )
        _given = _Settings(os.fspath(path), readonly)


def is_initialized() -> bool:
    """Whether it is too late for `initialize`."""
    return _is_open


def directory() -> Path | None:
    """Where compiled programs are kept; None if they are not. Asking counts as a first use."""
    store = _store()
    return None if store is None else store.path


def _store() -> Store | None:
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
    warnings.warn(f"lazy_runtime: {message}", RuntimeWarning, stacklevel=2)
