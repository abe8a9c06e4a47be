"""`torch.compile(model, backend="openxla")` on jax's XLA compiler. Importing it is not needed: torch finds the backend
through entry points.
"""

from __future__ import annotations

from typing import Any

__all__ = ["openxla"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name == "openxla":
        from .backend import openxla

        return openxla
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
