"""Modules that are imported when they are first asked for as attributes of their package.

`import torch_xla` is enough for `torch_xla.core.xla_model` there, and must not cost the import of everything here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType


def submodules(package: str, *names: str) -> Callable[[str], ModuleType]:
    """The `__getattr__` of a package, for these modules of it."""

    def find(name: str) -> ModuleType:
        if name in names:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
