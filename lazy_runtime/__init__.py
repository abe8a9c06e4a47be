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

import os

from . import _autoload, alias
from .alias import install_torch_xla_alias
from .common.on_demand import submodules
from .common.version import __version__
from .torch_xla import compile, device, device_count, devices, launch, manual_seed, real_devices, step, sync

__all__ = [
    "__version__",
    "compile",
    "device",
    "device_count",
    "devices",
    "install_torch_xla_alias",
    "launch",
    "manual_seed",
    "real_devices",
    "step",
    "sync",
]

__getattr__ = submodules(
    __name__,
    "_XLAC",
    "amp",
    "backends",
    "core",
    "debug",
    "distributed",
    "experimental",
    "jax",
    "runtime",
    "test",
    "torch_xla",
    "utils",
)

alias.install_short_names()
_autoload.load()  # torch has done it where the package is installed and TORCH_DEVICE_BACKEND_AUTOLOAD is 1
if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":  # as torch reads it
    _autoload.load_others()
