"""What `import torch` runs of this package (entry point `torch.backends`).

It claims the name `openxla` among Dynamo's backends, imports no jax and never raises, which would break `import torch`.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import sys
from typing import Any

from lazy_runtime.common import installation, interrupts, on_demand, ownership
from lazy_runtime.dispatcher import device_module

_STUB = "torch._dynamo.backends.torchxla"  # registers the name `openxla` for torch_xla
_NAME = "openxla"
_BACKEND = "openxla_backend.backend"
_OURS = importlib.metadata.EntryPoint(_NAME, f"{_BACKEND}:openxla", "torch_dynamo_backends")


def load() -> None:
    """The entry point. Idempotent."""
    if ownership.other_owner() is not None:  # `lazy_runtime` says so
        return
    claim_backend_name()
    on_demand.provide("lazy_runtime", "package", "openxla_backend.packaging.saving:package")
    on_demand.provide("lazy_runtime", "load", "openxla_backend.packaging.loading:load")
    if prepare_dynamo not in installation.after_start:
        installation.after_start.append(prepare_dynamo)


def claim_backend_name() -> None:
    """Makes `backend="openxla"` mean this package, whether Dynamo's own stub was imported before or comes later.

    An entry point in `torch_dynamo_backends` is not enough: `lookup_backend` prefers what a module has registered, and
    the stub's module registers the same name (torch/_dynamo/backends/torchxla.py).
    """
    if _STUB in sys.modules:
        _replace_stub()
    elif not any(isinstance(finder, _AfterStub) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterStub())


def _replace_stub() -> None:
    """Leaves our entry point under the stub's name, which torch loads when the name is first asked for.

    Torch imports the stub, with every other backend module, at the first `torch.compile` of any backend. So nothing
    here imports jax or raises: a program that compiles with another backend has no use for either.
    """
    try:
        from lazy_runtime.compat.dynamo import registered_backends, registered_compilers

        registered_backends[_NAME] = _OURS
        registered_compilers.pop(_NAME, None)
        prepare_dynamo()
    except Exception as error:
        sys.stderr.write(f"backend='openxla' could not be registered: {type(error).__name__}: {error}\n")


def prepare_dynamo() -> None:
    """Makes Dynamo know xla tensors, once it has looked for backends and xla is in use, whichever comes last.

    A function compiled by `backend="eager"` may work on xla tensors too. Without them Dynamo stays as it is until the
    backend itself is imported (`registration.py`).
    """
    if _STUB not in sys.modules or not device_module.is_initialized():
        return
    try:
        with interrupts.deferred():
            importlib.import_module(_BACKEND)
    except Exception as error:  # who asks for the backend by its name gets this error itself
        sys.stderr.write(f"backend='openxla' could not be imported: {type(error).__name__}: {error}\n")


class _AfterStub(importlib.abc.MetaPathFinder):
    """Finds the stub's module where it is, and takes its name for our backend as soon as it has run."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != _STUB:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            _replace_stub()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
