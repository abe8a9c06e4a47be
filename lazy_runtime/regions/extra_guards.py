"""What Dynamo's guards do not see of what a function depends on, so that a change is noticed all the same."""

from __future__ import annotations

import os
import types
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ..compat.torch import (
    backward_pre_hooks_of,
    forward_hooks_of,
    forward_pre_hooks_of,
    hooks_of_all_modules,
    module_backward_hooks_of,
)

_HOOKS = forward_pre_hooks_of, forward_hooks_of, backward_pre_hooks_of, module_backward_hooks_of
_GLOBAL_HOOKS = hooks_of_all_modules()
_FUNCTIONS = (types.FunctionType, staticmethod, classmethod, property)
_environment: Mapping[Any, Any] = os.environ._data  # type: ignore[attr-defined]


class Unguarded:
    """How that was when Dynamo looked at it.

    - Classes: a guard says of which class an object is, not that the class has the methods that it had.
    - Hooks of modules: to see them all costs a guard each (`torch._dynamo.config.skip_nnmodule_hook_guards`).
    - The environment: `os.getenv` is traced, and what it finds is taken for a constant.
    """

    def __init__(self) -> None:
        self._environment = dict(_environment)
        self._classes: dict[type, tuple[Mapping[str, Any], int, list[str], list[Any]]] = {}
        self._modules: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._hooks: list[Mapping[Any, Any]] = [hooks for hooks in _GLOBAL_HOOKS if not hooks]

    def note(self, objects: Iterable[Any]) -> None:
        """Takes in what guards are about."""
        for found in objects:
            kind = found if isinstance(found, type) else type(found)
            for each in kind.__mro__:
                self._note_class(each)
            if isinstance(found, torch.nn.Module) and found not in self._modules:
                self._modules.add(found)
                self._hooks += [hooks for hooks_of in _HOOKS if not (hooks := hooks_of(found))]

    def _note_class(self, kind: type) -> None:
        if kind in self._classes or not kind.__flags__ & _IS_MUTABLE:
            return
        own = vars(kind)
        functions = {name: value for name, value in own.items() if isinstance(value, _FUNCTIONS)}
        self._classes[kind] = own, len(own), list(functions), list(functions.values())

    def is_same(self) -> bool:
        """Whether all of it is as it was."""
        if any(self._hooks) or _environment != self._environment:
            return False
        return all(
            len(own) == size and [*map(own.get, names)] == values for own, size, names, values in self._classes.values()
        )


_IS_MUTABLE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a `class` statement
