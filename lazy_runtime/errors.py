"""Messages that users see, in one place so that they stay alike."""

from __future__ import annotations

import torch


def device_mismatch(first: torch.device, second: torch.device) -> str:
    """Torch's message for operands on different devices."""
    return (
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{first} and {second}!"
    )


def no_lowering(func: torch._ops.OpOverload) -> str:
    """For an operator that neither this package nor a decomposition of torch's lowers to XLA."""
    name = func.name()
    return (
        f"{name} has no lowering to XLA yet: move its inputs to the CPU for this operator "
        f"(`x.cpu()`, then `.to(device)` on the result), or add a lowering in lazy_runtime/ops "
        "(docs/architecture.md says how)"
    )

