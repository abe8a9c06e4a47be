"""`torch.jit.load` to xla: torch's reader of TorchScript archives knows the devices of its own build alone."""

from __future__ import annotations

import functools
from typing import Any

import torch


def install() -> None:
    """Has an archive for xla read to the CPU, and moved as a module is: its parameters and buffers.

    Tensors that are plain attributes, or constants of the code, stay on the CPU.
    """
    torchs = torch.jit.load

    @functools.wraps(torchs)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(map_location, str | torch.device) or torch.device(map_location).type != "xla":
            return torchs(f, map_location, *args, **kwargs)
        return torchs(f, "cpu", *args, **kwargs).to(map_location)

    torch.jit.load = load
