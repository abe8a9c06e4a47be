"""What happens when a tensor's data is there."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

__all__ = ["on_ready_callback", "on_ready_event"]


def on_ready_callback(tensor: torch.Tensor, callback: Callable[[torch.Tensor], None]) -> None:
    """Calls a function once the device has computed a tensor. What is pending for it is executed now.

    Args:
        tensor: an xla tensor.
        callback: gets the tensor, in a thread of its own. What it raises ends that thread, with a traceback.
    """
    from ...execution import execute
    from ...tensor.xla_tensor import unwrap

    inner = unwrap(tensor)
    array = execute.array_of(inner.handle.value, inner.spec.device)

    def wait() -> None:
        array.block_until_ready()
        callback(tensor)

    threading.Thread(target=wait, name="on_ready_callback", daemon=True).start()


def on_ready_event(tensor: torch.Tensor) -> threading.Event:
    """An event that is set once the device has computed a tensor; see `on_ready_callback`."""
    event = threading.Event()
    on_ready_callback(tensor, lambda _: event.set())
    return event
