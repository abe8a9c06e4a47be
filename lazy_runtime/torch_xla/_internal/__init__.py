"""What libraries import of PyTorch/XLA's internals."""

from __future__ import annotations

from ...common.on_demand import submodules

__getattr__ = submodules(__name__, "jax_workarounds", "pjrt", "rendezvous", "tpu")
