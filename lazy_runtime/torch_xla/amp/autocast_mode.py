"""`torch_xla.amp.autocast`: torch's own, which takes a device where torch takes its type."""

from __future__ import annotations

import functools
from typing import Any

import torch

custom_fwd = functools.partial(torch.amp.custom_fwd, device_type="xla")
custom_bwd = functools.partial(torch.amp.custom_bwd, device_type="xla")


class autocast(torch.amp.autocast):
    """Runs the operators that profit from it in `dtype` within the block, or in the decorated function.

    Args:
        device: an xla device, or a device of another type that torch has `autocast` for.
        dtype: bfloat16 by default.
    """

    def __init__(
        self,
        device: torch.device | str,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        cache_enabled: bool | None = True,
        **kwargs: Any,
    ):
        super().__init__(torch.device(device).type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled, **kwargs)
