"""Modules of the room `torch_xla` under the names that scripts know: `torch_xla.X`, and `lazy_runtime.X`.

Each is the room's module of that name, the very object: what is set on one is set on all.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from . import _autoload

_PACKAGE = __name__.partition(".")[0]
_ROOM = f"{_PACKAGE}.torch_xla"
_THEIRS = "torch_xla"

#: What `import torch_xla` and `importlib.metadata` find in the processes that a process with the alias starts.
_STAND_IN = os.path.join(os.path.dirname(__file__), "stand_in")

#: Modules of the room that are found without its name, too: `import lazy_runtime.core.xla_model as xm`.
SHORT = (
    "_XLAC",
    "_dynamo",
    "amp",
    "backends",
    "core",
    "debug.metrics",
    "debug.profiler",
    "distributed",
    "experimental",
    "runtime",
    "test",
    "utils",
)

#: What torch_xla has and we do not, with the reason that an import of it gets.
ABSENT = {
    "_internal.neuron": "jax loads PJRT plugins, by their entry point jax_plugins",
    "experimental.pjrt": "torch_xla.runtime has its names, in PyTorch/XLA too",
}


_ANY = importlib.metadata.DistributionFinder.Context()


class Finder(importlib.metadata.DistributionFinder):
    """Finds `torch_xla.X` where `lazy_runtime.torch_xla.X` is, and the distribution `torch_xla`."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module of torch_xla's; None for other modules.

        Raises:
            ModuleNotFoundError: torch_xla may have it, this package does not.
        """
        package, _, rest = fullname.partition(".")
        if package != _THEIRS:
            return None
        name = f"{_ROOM}.{rest}" if rest else _ROOM
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:  # its package is not there either
            found = None
        if found is None:
            reason = next((why for absent, why in ABSENT.items() if f"{rest}.".startswith(f"{absent}.")), None)
            raise ModuleNotFoundError(
                f"no module named {fullname!r}: {_PACKAGE}, which stands in for {_THEIRS} here, has no {name}"
                + (f" ({reason})" if reason else ""),
                name=fullname,
            )
        return _spec(fullname, name, found)

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context = _ANY
    ) -> Iterator[importlib.metadata.Distribution]:
        """The distribution `torch_xla`, whose version says which PyTorch/XLA the names are those of.

        Libraries ask `importlib.metadata` for it. It belongs to processes with the alias: all others would believe
        that `import torch_xla` works.
        """
        asked = context.name is None or context.name.replace("-", "_").lower() == _THEIRS
        if asked and "path" not in vars(context) and _STAND_IN not in sys.path:  # there Python's own finder has it
            yield from importlib.metadata.distributions(name=_THEIRS, path=[_STAND_IN])


class ShortFinder(importlib.abc.MetaPathFinder):
    """Finds `lazy_runtime.core.X` where `lazy_runtime.torch_xla.core.X` is."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module of the room, asked for without the room's name; None for other modules."""
        package, _, rest = fullname.partition(".")
        if package != _PACKAGE or not f"{rest}.".startswith(_SHORT_PREFIXES):
            return None
        found = importlib.util.find_spec(f"{_ROOM}.{rest}")
        return None if found is None else _spec(fullname, f"{_ROOM}.{rest}", found)


_SHORT_PREFIXES = tuple(f"{name}." for name in SHORT)


class Loader(importlib.abc.Loader):
    """Gives the room's module as the one that was asked for."""

    def __init__(self, name: str):
        self._name = name

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """The room's module. Importlib is about to put the alias's spec on it."""
        module = importlib.import_module(self._name)
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has been executed under its own name; its own spec comes back."""
        module.__spec__ = self._own


def _spec(alias: str, name: str, found: importlib.machinery.ModuleSpec) -> importlib.machinery.ModuleSpec:
    return importlib.machinery.ModuleSpec(
        alias, Loader(name), origin=found.origin, is_package=found.submodule_search_locations is not None
    )


def install_short_names() -> None:
    """Makes `import lazy_runtime.core.xla_model` give `lazy_runtime.torch_xla.core.xla_model`, and so on. Idempotent.

    The finder comes first: once a package stands under two names, Python's own would load its modules twice.
    """
    if not any(isinstance(finder, ShortFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, ShortFinder())


def install_torch_xla_alias(replace: bool = False) -> None:
    """Makes `import torch_xla`, and that of its modules, give this package. Call it before those imports. Idempotent.

    Args:
        replace: also where a real torch_xla is installed.

    Raises:
        RuntimeError: a real torch_xla is installed and `replace` is not set, or it has been imported.
    """
    if any(isinstance(finder, Finder) for finder in sys.meta_path):
        return
    loaded = sys.modules.get(_THEIRS)
    if loaded is not None:
        raise RuntimeError(
            f"{_THEIRS} has been imported from {getattr(loaded, '__file__', None)}: call install_torch_xla_alias() "
            "before anything imports it"
        )
    real = importlib.machinery.PathFinder.find_spec(_THEIRS)
    if real is not None and not replace and not (real.origin or "").startswith(_STAND_IN):
        raise RuntimeError(
            f"{_THEIRS} is installed at {real.origin}: uninstall it, or let this package take its place with "
            "install_torch_xla_alias(replace=True) or `python -m lazy_runtime --replace`"
        )
    sys.meta_path.insert(0, Finder())
    _autoload.load()  # which left the device to the real one
    _autoload.load_others()


def inherit() -> None:
    """Gives the alias to the processes that this one starts from now on, whatever they import first.

    Forked ones have it anyway. Multiprocessing's others take over `sys.path`, and all others read `PYTHONPATH`.
    """
    if _STAND_IN not in sys.path:
        safe = getattr(sys.flags, "safe_path", False)  # from Python 3.11 on
        sys.path.insert(0 if safe else 1, _STAND_IN)  # where Python puts PYTHONPATH
    paths = os.environ.get("PYTHONPATH")
    if _STAND_IN not in (paths or "").split(os.pathsep):
        os.environ["PYTHONPATH"] = _STAND_IN + (f"{os.pathsep}{paths}" if paths else "")
