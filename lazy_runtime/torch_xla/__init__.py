"""PyTorch/XLA's names, on this package's engine: what `import torch_xla` gives where the alias is installed.

Nothing of the engine imports this room. Importing it imports neither jax nor the operators.
"""

from __future__ import annotations

from ..common.on_demand import submodules
from ..common.version import TORCH_XLA_VERSION as __version__
from .torch_xla import (
    compile,
    device,
    device_count,
    devices,
    launch,
    manual_seed,
    real_devices,
    set_custom_compile_options,
    step,
    sync,
)

__all__ = [
    "__version__",
    "compile",
    "device",
    "device_count",
    "devices",
    "launch",
    "manual_seed",
    "real_devices",
    "set_custom_compile_options",
    "step",
    "sync",
]

_submodule = submodules(
    __name__,
    "_XLAC",
    "_dynamo",
    "_internal",
    "amp",
    "backends",
    "core",
    "debug",
    "distributed",
    "experimental",
    "runtime",
    "stablehlo",
    "test",
    "tf_saved_model_integration",
    "utils",
)


def __getattr__(name: str) -> object:
    if name in ("save_as_stablehlo", "save_torch_model_as_stablehlo"):
        return getattr(_submodule("stablehlo"), name)
    if name == "xm":
        return getattr(_submodule("core"), "xla_model")  # noqa: B009  found on demand
    return _submodule(name)
