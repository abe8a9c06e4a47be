"""PJRT plugins: jax loads these, not the names of PyTorch/XLA's C++."""

from __future__ import annotations

from typing import Any

__all__ = ["DevicePlugin", "default", "register_plugin", "use_dynamic_plugins", "using_dynamic_plugins"]

_WAY = (
    "here jax loads PJRT plugins: install a package with the entry point `jax_plugins` "
    "(https://docs.jax.dev/en/latest/developer.html), and set PJRT_DEVICE to the platform's name"
)


class DevicePlugin:
    """PyTorch/XLA's description of a PJRT plugin, which its C++ reads.

    Raises:
        NotImplementedError: always.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        raise NotImplementedError(f"DevicePlugin: {_WAY}")


def register_plugin(name: str, device_plugin: Any) -> None:
    """Raises NotImplementedError, and says what takes its place."""
    raise NotImplementedError(f"register_plugin({name!r}): {_WAY}")


def default() -> Any:
    """Raises NotImplementedError, and says what takes its place."""
    raise NotImplementedError(f"plugins.default(): {_WAY}")


def use_dynamic_plugins() -> None:
    """Plugins are always found by their entry points: there is nothing to switch on."""


def using_dynamic_plugins() -> bool:
    """Whether plugins are found by their entry points: always."""
    return True
