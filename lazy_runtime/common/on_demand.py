"""Modules that are imported when they are first asked for as attributes of their package.

`import torch_xla` is enough for `torch_xla.core.xla_model` there, and must not cost the import of everything here.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

#: (package, name) → where what has that name is to be found, `module:attribute`.
_provided: dict[tuple[str, str], str] = {}


def provide(package: str, name: str, path: str) -> None:
    """Makes something of an upper package an attribute of a lower one, which knows nothing of it."""
    _provided[package, name] = path


def submodules(package: str, *names: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package, for these modules of it and for what `provide` was told of."""

    def find(name: str) -> Any:
        if name in names:
            return importlib.import_module(f"{package}.{name}")
        if (package, name) in _provided:
            return pkgutil.resolve_name(_provided[package, name])
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
