"""What `import torch` runs when this package is installed (entry point `torch.backends`): milliseconds, and no jax.

It registers the device guard with 0 devices, the kernels that any first use of `xla` meets, and our claim on the name
`openxla` among Dynamo's backends. It never raises, since that would break `import torch` itself: what went wrong is
said at the first use of the device.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import sys
from typing import Any

_STUB = "torch._dynamo.backends.torchxla"  # registers the name `openxla` for torch_xla
_NAME = "openxla"
_OURS = importlib.metadata.EntryPoint(_NAME, "openxla_backend.backend:openxla", "torch_dynamo_backends")
_library: Any = None
_watching_moves: list[Any] = []
_gave_way = False


def load() -> None:
    """The entry point. Idempotent."""
    global _library, _gave_way
    if _library is not None:
        return
    import torch

    try:
        owner = other_owner()
        if owner is not None:
            if not _gave_way:
                sys.stderr.write(f"{owner}\n")
            _gave_way = True
            return
        claim_backend_name()
        from . import device_module, module_moves
        from .debug import output

        _library = torch.library.Library("aten", "IMPL")
        if not _has_guard():  # the first use builds it or says what is wrong: `xla_devices.start`, or a move to xla
            _start_at_moves()
        _library.impl("empty.memory_format", _first_use("empty"), "XLA")
        _library.impl("empty_strided", _first_use("empty_strided"), "XLA")
        _library.impl("_to_copy", _first_use("to_copy"), "XLA")
        for name in ("_empty_affine_quantized", "_empty_per_channel_affine_quantized", "empty_quantized"):
            _library.impl(name, _first_use("refuse_quantized", f"aten::{name}"), "XLA")
        if not hasattr(torch, "xla"):
            torch._register_device_module("xla", device_module)
        module_moves.install()
        output.register()  # torch reads TORCH_LOGS next
        torch.serialization.register_package(9, _location_tag, _restore)  # before the CPU's, 10
    except Exception as error:  # a torch that we do not know: say so later, not here
        sys.stderr.write(f"lazy_runtime could not set up the xla device: {type(error).__name__}: {error}\n")


def _first_use(kernel: str, *before: Any) -> Any:
    """A kernel that starts xla when it is called.

    Args:
        kernel: the name of a function in `kernels`.
        before: its arguments before those of the operator.
    """
    function: Any = None

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal function
        if function is None:
            from . import interrupts

            with interrupts.deferred():  # half of a module's import could not be repeated
                from . import xla_devices

                xla_devices.start()
                from . import kernels

                function = getattr(kernels, kernel)
        return function(*before, *args, **kwargs)

    return call


def _has_guard() -> bool:
    """Loads the device guard, if it has been built."""
    from . import native

    try:
        return native.has_guard() and native.guard() is not None
    except native.NativeError:
        return False


def _start_at_moves() -> None:
    """Without the guard torch refuses `.to("xla")` in words that help nobody ("PyTorch is not linked with support for
    xla devices") before it asks any kernel of xla's. So until there is one, the CPU's `.to` looks at its target."""
    import torch

    library = torch.library.Library("aten", "IMPL")
    for overload in (torch.ops.aten.to.device, torch.ops.aten.to.dtype_layout):

        def to(*args: Any, _overload: Any = overload, **kwargs: Any) -> Any:
            for value in (*args[1:2], kwargs.get("device")):
                if isinstance(value, torch.device) and value.type == "xla":
                    from . import xla_devices

                    xla_devices.start()
            return _overload._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)

        for key in ("AutogradCPU", "CPU"):
            library.impl(overload, to, key)
    _watching_moves.append(library)


def guard_came_late() -> bool:
    """Whether the device guard was not there when torch was imported."""
    return bool(_watching_moves)


def end_watch() -> None:
    """Leaves moves to torch: the guard is there."""
    while _watching_moves:
        _watching_moves.pop()._destroy()


def _restore(saved: Any, location: str) -> Any:
    """`torch.load(map_location="xla")` of a checkpoint that was saved on another device."""
    if not location.startswith("xla"):
        return None
    from . import storage

    return storage.restore(saved, location)


def _location_tag(saved: Any) -> str | None:
    """What a checkpoint says of where a storage was: nothing, but of xla's."""
    device = saved.device
    return str(device) if device.type == "xla" else None


def other_owner() -> str | None:
    """Why this package leaves everything to torch_xla; None where that is not installed (or is our stand-in for it)."""
    try:
        spec = importlib.util.find_spec("torch_xla")
    except ValueError:  # a module without a spec in sys.modules
        spec = None
    ours = os.path.dirname(__file__) + os.sep
    if spec is None or spec.loader is None or type(spec.loader).__module__.startswith("lazy_runtime"):
        return None
    if spec.origin is None or spec.origin.startswith(ours):
        return None
    return (
        "torch_xla is installed beside openxla-torch and owns the xla device and backend='openxla': openxla-torch "
        "stays out of its way. To use openxla-torch, `pip uninstall torch_xla`"
    )


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
        from torch._dynamo.backends import registry

        registry._BACKENDS[_NAME] = _OURS
        registry._COMPILER_FNS.pop(_NAME, None)
        prepare_dynamo()
    except Exception as error:
        sys.stderr.write(f"backend='openxla' could not be registered: {type(error).__name__}: {error}\n")


def prepare_dynamo() -> None:
    """Makes Dynamo know xla tensors, once it has looked for backends and xla is in use, whichever comes last.

    A function compiled by `backend="eager"` may work on xla tensors too. Without them Dynamo stays as it is until the
    backend itself is imported (`openxla_backend.registration`).
    """
    devices = sys.modules.get("lazy_runtime.xla_devices")
    if _STUB not in sys.modules or devices is None or not devices.is_started():
        return
    from . import interrupts

    try:
        with interrupts.deferred():
            importlib.import_module("openxla_backend.backend")
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
