"""What `import torch` runs when this package is installed (entry point `torch.backends`): milliseconds, and no jax.

It registers the device guard with 0 devices and the kernels that any first use of `xla` meets. It never raises, since
that would break `import torch` itself: what went wrong is said at the first use of the device.
"""

from __future__ import annotations

import importlib.metadata
import sys
from typing import Any

from .common import installation
from .common.ownership import other_owner

_GROUP = "torch.backends"  # entry points that `import torch` loads
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
        from .common import output
        from .compat.torch import register_device_module
        from .dispatcher import device_module, factories, jit_loading, module_moves

        _library = torch.library.Library("aten", "IMPL")
        if not _has_guard():  # the first use builds it or says what is wrong: `xla_devices.start`, or a move to xla
            _start_at_moves()
        _library.impl("empty.memory_format", _first_use("empty"), "XLA")
        _library.impl("empty_strided", _first_use("empty_strided"), "XLA")
        _library.impl("_to_copy", _first_use("to_copy"), "XLA")
        for name in factories.FACTORIES:
            _library.impl(name, _first_use("factory", name), "XLA")
        for name in ("_empty_affine_quantized", "_empty_per_channel_affine_quantized", "empty_quantized"):
            _library.impl(name, _first_use("refuse_quantized", f"aten::{name}"), "XLA")
        if not hasattr(torch, "xla"):
            register_device_module("xla", device_module)
        module_moves.install()
        jit_loading.install()
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
            from .common import interrupts

            with interrupts.deferred():  # half of a module's import could not be repeated
                from .platform import xla_devices

                xla_devices.start()
                from .dispatcher import kernels

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
    xla devices") before it asks any kernel of xla's. So until there is one, the CPU's `.to` looks at its target.
    """
    import torch

    from .compat.torch import DispatchKey, kernel_call_of

    library = torch.library.Library("aten", "IMPL")
    for overload in (torch.ops.aten.to.device, torch.ops.aten.to.dtype_layout):

        def to(*args: Any, _overload: Any = overload, **kwargs: Any) -> Any:
            for value in (*args[1:2], kwargs.get("device")):
                if isinstance(value, torch.device) and value.type == "xla":
                    from .platform import xla_devices

                    xla_devices.start()
            return kernel_call_of(_overload)(DispatchKey.CompositeImplicitAutograd, *args, **kwargs)

        for key in ("AutogradCPU", "CPU"):
            library.impl(overload, to, key)
    _watching_moves.append(library)
    installation.guard_came_late = True
    installation.after_start.append(_end_watch)


def _end_watch() -> None:
    """Leaves moves to torch: the guard is there."""
    from .compat.torch import destroy_library

    while _watching_moves:
        destroy_library(_watching_moves.pop())


def _restore(saved: Any, location: str) -> Any:
    """`torch.load(map_location="xla")` of a checkpoint that was saved on another device."""
    if not location.startswith("xla"):
        return None
    from .dispatcher import storage

    return storage.restore(saved, location)


def _location_tag(saved: Any) -> str | None:
    """What a checkpoint says of where a storage was: nothing, but of xla's."""
    device = saved.device
    return str(device) if device.type == "xla" else None


def load_others() -> None:
    """Loads what else of this distribution torch loads when it is imported."""
    for point in importlib.metadata.entry_points(group=_GROUP):
        if point.dist is not None and point.dist.name == "openxla-torch" and point.module != __name__:
            point.load()()


def _install(backward_in_caller: bool) -> None:
    from .dispatcher import kernels  # noqa: F401  the handlers of copies and aliases stand in kernels
    from .recording import dispatch

    dispatch.install(backward_in_caller)


def _register() -> None:
    from .dispatcher import kernels

    kernels.register()


installation.provide(_install, _register)
