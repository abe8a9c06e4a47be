"""`import torch_xla` served from this package.

Each module of torch_xla is our module of the same name, the very object: what is set on one is set on both.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

from . import _autoload

_OURS = __name__.partition(".")[0]
_THEIRS = "torch_xla"

#: What torch_xla has and we do not, with the reason that an import of it gets.
ABSENT = {
    "distributed.fsdp": "shard by torch.distributed.fsdp.fully_shard, or by "
    "torch_xla.experimental.spmd_fully_sharded_data_parallel",
}


class Finder(importlib.abc.MetaPathFinder):
    """Finds `torch_xla.X` where `lazy_runtime.X` is."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module of torch_xla's; None for other modules.

        Raises:
            ModuleNotFoundError: torch_xla may have it, this package does not.
        """
        package, _, rest = fullname.partition(".")
        if package != _THEIRS:
            return None
        name = f"{_OURS}.{rest}" if rest else _OURS
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:  # its package is not there either
            found = None
        if found is None:
            reason = next((why for absent, why in ABSENT.items() if f"{rest}.".startswith(f"{absent}.")), None)
            raise ModuleNotFoundError(
                f"no module named {fullname!r}: {_OURS}, which stands in for {_THEIRS} here, has no {name}"
                + (f" ({reason})" if reason else ""),
                name=fullname,
            )
        return importlib.machinery.ModuleSpec(
            fullname, Loader(name), origin=found.origin, is_package=found.submodule_search_locations is not None
        )


class Loader(importlib.abc.Loader):
    """Gives our module as the one that was asked for."""

    def __init__(self, name: str):
        self._name = name

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Our module. Importlib is about to put the alias's spec on it."""
        module = importlib.import_module(self._name)
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has been executed under its own name; its own spec comes back."""
        module.__spec__ = self._own


def install(replace: bool = False) -> None:
    """See `lazy_runtime.install_torch_xla_alias`. Idempotent."""
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


_STAND_IN = os.path.join(os.path.dirname(__file__), "stand_in")


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
