"""Our claim on names among Dynamo's backends."""

from __future__ import annotations

from torch._dynamo.backends import registry


def register() -> None:
    """Makes `openxla` this package's backend, replacing torch's stub for torch_xla of the same name. Idempotent."""
    from .backend import openxla

    registry._BACKENDS["openxla"] = None
    registry._COMPILER_FNS["openxla"] = openxla
    openxla._tags = ()  # type: ignore[attr-defined]
