"""Sessions that limit how many different graphs are recorded: `torch_xla.compile(max_different_graphs=...)` by hand."""

from __future__ import annotations

import threading

from ...regions.graph_limit import GraphLimit

__all__ = [
    "_dynamic_shape_detector_end_session",
    "_dynamic_shape_detector_get_max_different_graphs",
    "_dynamic_shape_detector_remove_session",
    "_dynamic_shape_detector_set_max_different_graphs",
    "_dynamic_shape_detector_start_session",
]

_most = 1
_sessions: dict[str, GraphLimit] = {}


class _Thread(threading.local):
    session = ""


_thread = _Thread()


def _dynamic_shape_detector_set_max_different_graphs(max_different_graphs: int) -> None:
    """How many different graphs each session may have, whenever it began."""
    global _most
    _most = max_different_graphs


def _dynamic_shape_detector_get_max_different_graphs() -> int:
    """See `_dynamic_shape_detector_set_max_different_graphs`."""
    return _most


def _dynamic_shape_detector_start_session(session: str) -> None:
    """Begins to record a graph of a session of this name in the calling thread, or goes on with the session.

    Raises:
        RuntimeError: the thread has begun one already.
    """
    if _thread.session:
        raise RuntimeError(f"the session {_thread.session!r} has not been ended")
    _sessions.setdefault(session, GraphLimit(_most))
    _thread.session = session


def _dynamic_shape_detector_end_session() -> bool:
    """Ends the graph: what is pending now belongs to it.

    Returns:
        whether a session had been begun.

    Raises:
        RuntimeError: it is one graph too many.
    """
    name, _thread.session = _thread.session, ""
    limit = _sessions.get(name)
    if limit is None:
        return False
    limit.most = _most
    limit.check(f"the session {name!r}")
    return True


def _dynamic_shape_detector_remove_session(session: str) -> None:
    """Forgets a session's graphs."""
    _sessions.pop(session, None)
