"""The `xla` device for PyTorch, on jax's XLA compiler and runtime.

    import torch
    import lazy_runtime

    model = model.to(lazy_runtime.device())
    for batch in loader:
        loss = model(batch.to("xla")).sum()
        loss.backward()
        optimizer.step()
        lazy_runtime.sync()

Importing this package imports neither jax nor the operators: `import torch` finds the device through it.
"""

from __future__ import annotations

import importlib
from typing import Any

from ._api import (
    compile,
    device,
    device_count,
    devices,
    install_torch_xla_alias,
    manual_seed,
    real_devices,
    step,
    sync,
)
from ._version import __version__

__all__ = [
    "__version__",
    "compile",
    "device",
    "device_count",
    "devices",
    "install_torch_xla_alias",
    "manual_seed",
    "real_devices",
    "step",
    "sync",
]

#: Modules that are imported when they are first asked for: `torch_xla.experimental.eager_mode(True)` needs no more than
#: `import torch_xla`.
_LAZY = frozenset(
    (
        "_XLAC",
        "amp",
        "backends",
        "core",
        "debug",
        "distributed",
        "experimental",
        "runtime",
        "test",
        "torch_xla",
        "utils",
    )
)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
