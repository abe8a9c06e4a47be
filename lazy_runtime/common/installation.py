"""What the first use of xla starts besides the devices.

The device guard, the operators and Dynamo stand above the devices, which start them without knowing them: what is above
registers here.
"""

from __future__ import annotations

from collections.abc import Callable

#: Whether the device guard was not there when torch was imported. Then it does not know who asked for its devices.
guard_came_late = False
#: Called once the devices are up.
after_start: list[Callable[[], None]] = []

_install: Callable[[bool], None] | None = None
_register: Callable[[], None] | None = None


def provide(install: Callable[[bool], None], register: Callable[[], None]) -> None:
    """Says what installs the operators.

    Args:
        install: loads them, and has xla tensors dispatch to them; its argument says that autograd has no worker threads
            for xla.
        register: registers the kernels of torch's key XLA.
    """
    global _install, _register
    _install, _register = install, register


def install(backward_in_caller: bool) -> None:
    """Loads the operators, for programs on tensors of any device."""
    assert _install is not None  # `lazy_runtime` provides it when it is imported
    _install(backward_in_caller)


def register() -> None:
    """Registers the kernels of torch's key XLA."""
    assert _register is not None
    _register()
