"""Names of checkpoints (`latest`, `best`), and the removal of those that no name is left for."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any


class CheckpointTagger:
    """Keeps a path for each name.

    Args:
        remover: called with a path when its last name has gone to another one.
    """

    def __init__(self, remover: Callable[[str], Any] | None = None):
        self._remover = remover
        self._paths: dict[str, str] = {}
        self._names: Counter[str] = Counter()  # how many each path has

    def tag(self, name: str, path: str) -> None:
        """Gives a path a name, which it takes from the path that had it."""
        before = self._paths.get(name)
        self._paths[name] = path
        self._names[path] += 1
        if before is None:
            return
        self._names[before] -= 1
        if not self._names[before]:
            del self._names[before]
            if self._remover is not None:
                self._remover(before)

    @property
    def tags(self) -> dict[str, str]:
        """Name → path."""
        return self._paths

    def save_to_json(self) -> str:
        """The names as JSON."""
        return json.dumps(self._paths)

    @classmethod
    def load_from_json(cls, str_json: str, remover: Callable[[str], Any] | None = None) -> CheckpointTagger:
        """The tagger that `save_to_json` was called of."""
        made = cls(remover)
        for name, path in json.loads(str_json).items():
            made.tag(name, path)
        return made
