"""`data_ptr()` of xla tensors and their storages: addresses that no memory has.

What is asked of an address is whether tensors share memory, and where in it each begins: by `safetensors`, by the
libraries that find tied weights, by `torch.save`. So each storage gets a range of its own, at the first question.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from ..compat.torch import tensor_data_ptr
from ..recording import views

_ALIGNMENT = 64
_lock = threading.Lock()
_next = 1 << 56  # beyond what processors address, so that whoever reads there is stopped


def of_storage(storage: torch.UntypedStorage) -> int:
    """Where an xla storage begins: the same for as long as it lives, not 0, and a multiple of 64."""
    global _next
    known = getattr(storage, "xla_address", None)
    if known is None:
        size = storage.nbytes()
        with _lock:
            known, _next = _next, _next + (size // _ALIGNMENT + 1) * _ALIGNMENT
        storage.xla_address = known  # type: ignore[attr-defined]  torch keeps it with the memory
    return known


def register() -> None:
    """Makes `Tensor.data_ptr` agree with the storage of an xla tensor, as it does on every other device."""
    torchs = tensor_data_ptr

    def data_ptr(self: torch.Tensor) -> int:
        """Returns the address of the first element; of an xla tensor one that no memory has."""
        begin: Any = torchs(self)
        if type(self) in (torch.Tensor, torch.nn.Parameter) and self.device.type == "xla" and views.has_memory(self):
            return of_storage(self.untyped_storage()) + begin  # torch's own counts from 0
        return begin

    torch.Tensor.data_ptr = data_ptr  # type: ignore[method-assign]
