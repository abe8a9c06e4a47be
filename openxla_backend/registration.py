"""Our claim on names among Dynamo's backends."""

from __future__ import annotations

import functools

from torch._dynamo import trace_rules
from torch._dynamo.backends import registry


def register() -> None:
    """Makes `openxla` this package's backend, replacing torch's stub for torch_xla of the same name. Idempotent."""
    from .backend import openxla

    registry._BACKENDS["openxla"] = None
    registry._COMPILER_FNS["openxla"] = openxla
    openxla._tags = ()  # type: ignore[attr-defined]
    # An operator on an xla tensor that runs between two compiled graphs is Python code of these packages, which Dynamo
    # would compile as if it were the user's.
    _skip_packages()


@functools.cache
def _skip_packages() -> None:
    for package in ("lazy_runtime", "openxla_backend", "jax", "jaxlib"):
        trace_rules.add(package)
