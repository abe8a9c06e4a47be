"""Facts that take long to find out and stay true on a machine, kept on disk beside the compiled programs.

What they depend on is kept with them: where that is another one, they are found out anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

from . import disk_cache
from .disk_store import TornError, UnsafeError


class Notes:
    """Facts of one kind, by a key each. They are read when the first is asked for, and written by `keep`.

    Args:
        kind: what they are about; the name of the file begins so.
        surroundings: gives what all of them depend on.
    """

    def __init__(self, kind: str, surroundings: Callable[[], Mapping[str, str]]):
        self._kind = kind
        self._surroundings = surroundings
        self._known: dict[str, Any] | None = None
        self._are_new = False
        self._lock = threading.Lock()

    def find(self, key: str, find_out: Callable[[], Any]) -> Any:
        """What is known under the key, or is found out now.

        Args:
            find_out: gives what JSON has.
        """
        with self._lock:
            if self._known is None:
                self._known = self._read()
            if key in self._known:
                return self._known[key]
        found = find_out()
        with self._lock:
            self._known[key] = found
            self._are_new = True
        return found

    def keep(self) -> None:
        """Writes what was found out since, together with what other processes have written. A disk that cannot be
        written to is none of the caller's concern: the facts are found out again.
        """
        store = disk_cache.store()
        with self._lock:
            if not self._are_new or store is None or store.readonly:
                return
            self._are_new = False
            self._known = {**self._read(), **(self._known or {})}
            header = {"surroundings": dict(self._surroundings()), "known": self._known}
        with contextlib.suppress(OSError):
            store.write(self._name(), header, b"")

    def _read(self) -> dict[str, Any]:
        store = disk_cache.store()
        if store is None:
            return {}
        try:
            entry = store.read(self._name())
        except (TornError, UnsafeError, OSError):
            return {}
        if entry is None or entry.header.get("surroundings") != dict(self._surroundings()):
            return {}
        known = entry.header.get("known")
        return known if isinstance(known, dict) else {}

    def _name(self) -> str:
        text = json.dumps(dict(self._surroundings()), sort_keys=True)
        return f"{self._kind}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
