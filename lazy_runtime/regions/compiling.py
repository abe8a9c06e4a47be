"""`lazy_runtime.compile`: a region of the program that becomes one XLA program."""

from __future__ import annotations

import contextlib
import functools
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from ..common import causes
from ..compilation import lower
from ..execution import execute, mark_step
from . import TRACE_AFTER
from .graph_limit import GraphLimit
from .traced import Traced

causes.register(__file__, "torch_xla.compile", "_execute")
causes.register(
    __file__, "torch_xla.compile clear the pending graph prior calling the target function", "_clear_pending"
)

_NOT_THE_USERS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))

_lock = threading.Lock()
_open = 0  # regions that are being traced, in all threads
_eager_outside = False


class _Thread(threading.local):
    region: Region | None = None


_thread = _Thread()


def is_tracing() -> bool:
    """Whether the calling thread is in a region."""
    return _thread.region is not None


def is_traced_whole() -> bool:
    """Whether the calling thread is in a function that has been traced, and is all that its region consists of. What
    it does may be executed when it is done; nothing of the region follows.
    """
    region = _thread.region
    if region is None or region.traced is None or region.max_graphs is not None:
        return False
    return region.traced.is_running


class Region:
    """One compiled function or `with` block.

    Attributes:
        graph_name: what reports and dumps call its programs, or empty.
        full_graph: reading a value or syncing inside raises.
        max_graphs: how many different graphs it may give over its life; None for any number.
        options: of the XLA compiler.
        traced: the function, if it is one.
    """

    def __init__(self, name: str, full_graph: bool, max_graphs: int | None, options: tuple[tuple[str, Any], ...] = ()):
        self.graph_name = name
        self.full_graph = full_graph
        self.max_graphs = max_graphs
        self.options = options
        self.limit = None if max_graphs is None else GraphLimit(max_graphs)
        self.traced: Traced | None = None

    @property
    def name(self) -> str:
        """What errors call it."""
        return self.graph_name or "the compiled block"

    @contextlib.contextmanager
    def trace(self) -> Iterator[None]:
        """Eager mode off, nothing pending at entry, everything executed at the end.

        Raises:
            RuntimeError: too many different graphs; from inside of the block, a read although `full_graph`.
        """
        if _thread.region is not None:  # a compiled function called by another is a part of its program
            yield
            return
        self._clear_pending()
        _enter()
        _thread.region = self
        execute.thread.options = self.options
        lower.thread.name = self.graph_name
        try:
            yield
            self._check_count()
            _thread.region = None
            self._execute()  # not in eager mode yet, which waits for a program that may fail
        except Exception as error:
            _thread.region = None
            self._execute_after(error)
            raise
        finally:
            _thread.region = None
            execute.thread.options = ()
            lower.thread.name = ""
            _leave()

    # These two have names of their own because reports tell them apart by these (`debug.reports`).

    def _clear_pending(self) -> None:
        lower.thread.name = self.graph_name and f"{self.graph_name}_clear_pending"
        try:
            mark_step.mark_step()
        finally:
            lower.thread.name = ""

    def _execute(self) -> None:
        mark_step.mark_step()

    def _execute_after(self, error: Exception) -> None:
        """Ends the step of a block that has raised, so that what it had recorded is no part of the next program."""
        try:
            mark_step.mark_step()
        except Exception as other:
            if other is not error:
                error.add_note(f"and then, in what had been recorded: {type(other).__name__}: {other}")

    def _check_count(self) -> None:
        if self.limit is not None:
            self.limit.check(self.name)


def _enter() -> None:
    global _open, _eager_outside
    with _lock:
        if _open == 0:
            _eager_outside, execute.eager = execute.eager, False
        _open += 1


def _leave() -> None:
    global _open
    with _lock:
        _open -= 1
        if _open == 0:
            execute.eager = _eager_outside


def on_recording(undo: Callable[[], None]) -> None:
    """For what Dynamo's tracing of the calling thread's region changes: `undo` is called if the region is recorded
    after all.
    """
    region = _thread.region
    if region is not None and region.traced is not None:
        region.traced.on_recording(undo)


def _refuse_cut(what: str) -> None:
    """Raises if the calling thread is in a region that must stay one graph; `what` would cut it."""
    region = _thread.region
    if region is not None and region.full_graph:
        raise RuntimeError(
            "Unexpected execution happens inside the compiled function, exiting: "
            f"{region.name} is compiled with full_graph=True and {what} at {_user_line()}, which would cut its graph "
            "in two: move that out of the function, or drop full_graph"
        )


def _user_line() -> str:
    """Where the user's code stands: the innermost frame outside of torch and this package."""
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(_NOT_THE_USERS):
            return f"{frame.filename}:{frame.lineno} ({frame.line})"
    return "an unknown line"


execute.before_cut = _refuse_cut


def compile(
    f: Callable[..., Any] | None,
    full_graph: bool,
    name: str | None,
    max_different_graphs: int | None,
    options: tuple[tuple[str, Any], ...] = (),
    trace_after: int | None = TRACE_AFTER,
) -> Any:
    """See `lazy_runtime.compile`."""
    if max_different_graphs is not None and max_different_graphs < 1:
        raise ValueError(f"max_different_graphs must be at least 1, got {max_different_graphs}")
    if trace_after is not None and trace_after < 0:
        raise ValueError(f"trace_after must be at least 0, got {trace_after}")
    if f is None:
        return _Pending(Region(name or "", full_graph, max_different_graphs, options), trace_after)
    called = name or getattr(f, "__name__", type(f).__name__)
    region = Region(called, full_graph, max_different_graphs, options)
    if max_different_graphs is not None:
        region.limit = _limit_of(f, max_different_graphs)
    return _wrap(f, region, trace_after)


#: How many graphs each function may give, however often it is compiled anew.
_limits: weakref.WeakKeyDictionary[Callable[..., Any], GraphLimit] = weakref.WeakKeyDictionary()


def _limit_of(f: Callable[..., Any], most: int) -> GraphLimit:
    try:
        found = _limits.setdefault(f, GraphLimit(most))
    except TypeError:  # nothing can refer to it weakly, or hash it
        return GraphLimit(most)
    found.most = most
    return found


def _wrap(f: Callable[..., Any], region: Region, trace_after: int | None) -> Callable[..., Any]:
    call = Traced(f, region.name, trace_after)

    @functools.wraps(f)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        if _thread.region is not None:  # called by another: a part of its program
            return f(*args, **kwargs)
        with region.trace():
            region.traced = call
            return call(*args, **kwargs)

    return compiled


class _Pending:
    """`compile(...)` without a function: a context manager, and a decorator with arguments."""

    def __init__(self, region: Region, trace_after: int | None):
        self._region = region
        self._trace_after = trace_after

    def __call__(self, f: Callable[..., Any]) -> Callable[..., Any]:
        if not self._region.graph_name:
            self._region.graph_name = getattr(f, "__name__", type(f).__name__)
        return _wrap(f, self._region, self._trace_after)

    def __enter__(self) -> None:
        self._block = self._region.trace()
        self._block.__enter__()

    def __exit__(self, *exception: Any) -> bool | None:
        return self._block.__exit__(*exception)
