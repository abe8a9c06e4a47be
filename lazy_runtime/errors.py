"""Messages that users see, in one place so that they stay alike."""

from __future__ import annotations

import torch


def device_mismatch(first: torch.device, second: torch.device) -> str:
    """Torch's message for operands on different devices."""
    return f"Expected all tensors to be on the same device, but found at least two devices, {first} and {second}!"


def no_lowering(func: torch._ops.OpOverload) -> str:
    """For an operator that neither this package nor a decomposition of torch's lowers to XLA."""
    name = func.name()
    return (
        f"{name} has no lowering to XLA yet: move its inputs to the CPU for this operator "
        f"(`x.cpu()`, then `.to(device)` on the result), or add a lowering in lazy_runtime/ops "
        "(docs/architecture.md says how)"
    )


def data_dependent(func: torch._ops.OpOverload) -> str:
    """For an operator whose result has a size that depends on data, inside of a compiled graph."""
    return (
        f"{func.name()} gives a tensor whose size depends on data, which an XLA program cannot: "
        "keep it out of the compiled function (torch.compiler.disable), or use torch.where or a masked fill"
    )


def not_dense(kind: str) -> str:
    """For a sparse or quantized tensor."""
    return (
        f"xla tensors are dense, a {kind} tensor cannot be on an xla device: convert it first (`x.to_dense()`, "
        "`x.dequantize()`), and use sparse=False in nn.Embedding"
    )
