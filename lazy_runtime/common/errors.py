"""Messages that users see, in one place so that they stay alike."""

from __future__ import annotations

import torch

from ..compat.torch import OpOverload, schema_of
from . import source_locations


def user_line() -> str:
    """The innermost frame outside of torch and this package: `File "x.py", line 3, in f`; empty where there is none, as
    on autograd's threads.
    """
    line = source_locations.here()
    return f'File "{line.file}", line {line.number}, in {line.function}' if line is not None else ""


def device_mismatch(first: torch.device, second: torch.device) -> str:
    """Torch's message for operands on different devices."""
    return f"Expected all tensors to be on the same device, but found at least two devices, {first} and {second}!"


def fake_beside_real(func: OpOverload) -> str:
    """For a tensor without data, of a `FakeTensorMode`, beside an xla tensor."""
    return (
        f"Please convert all Tensors to FakeTensors first (`mode.from_tensor(x)`): {func.name()} got an xla tensor "
        "that has data, and fake ones that have none"
    )


def type_name(dtype: torch.dtype) -> str:
    """What torch's C++ calls a dtype in its messages: `Float`, `Long`, `Byte`."""
    return torch.empty(0, dtype=dtype, device="cpu").type().removeprefix("torch.").removesuffix("Tensor")


def no_lowering(func: OpOverload) -> str:
    """For an operator that neither this package nor a decomposition of torch's lowers to XLA, and that cannot be called
    in its place either.
    """
    return (
        f"{func.name()} has no lowering to XLA yet, and cannot be called from an XLA program: move its inputs to the "
        "CPU for this operator (`x.cpu()`, then `.to(device)` on the result), or add a lowering in lazy_runtime/ops "
        "(CONTRIBUTING.md says how)"
    )


def no_kernel(func: OpOverload) -> str:
    """For an operator, usually of the user's own, that has no kernel at all which could run here."""
    return (
        f"{func.name()} has no lowering to XLA, and no kernel for the CPU that could be called in its place: register "
        f'one with torch.library.impl("{schema_of(func).name}", "CPU"), or make the operator of others, with '
        '"CompositeImplicitAutograd"'
    )


def strict_fallback(func: OpOverload, line: str) -> str:
    """For an operator without a lowering where XLA_STRICT_FALLBACK forbids to call torch's kernel instead."""
    return (
        f"{func.name()} has no lowering to XLA, and XLA_STRICT_FALLBACK forbids to call torch's CPU kernel: unset it, "
        f"or add a lowering in lazy_runtime/ops (CONTRIBUTING.md says how)\n  called at {line or 'no known line'}"
    )


class DataDependentError(NotImplementedError):
    """An operator whose result has a size that depends on data, inside of a graph that is being compiled."""

    def __init__(self, func: OpOverload):
        super().__init__(
            f"{func.name()} gives a tensor whose size depends on data, which an XLA program cannot: "
            "keep it out of the compiled function (torch.compiler.disable), or use torch.where or a masked fill"
        )


def not_dense(kind: str) -> str:
    """For a sparse tensor of another layout than COO."""
    return (
        f"xla tensors are dense, a {kind} tensor cannot be on an xla device: convert it first (`x.to_dense()`), and "
        "use sparse=False in nn.Embedding"
    )


def quantized_move() -> str:
    """For a move of a quantized tensor to an xla device."""
    return (
        "a quantized tensor cannot be on an xla device: move its numbers (`x.dequantize().to(device)`) or its integers "
        "(`x.int_repr().to(device)`); leave a quantized model on the CPU, or move the one that it was made of"
        + _called_at()
    )


def no_quantized(name: str) -> str:
    """For an operator on xla tensors that gives or takes quantized ones."""
    return (
        f"{name} is of quantized tensors, which cannot be on an xla device: quantize on the CPU (`model.cpu()`, "
        "`x.cpu()`), train with torch.fake_quantize_per_tensor_affine, or keep integers and scales "
        "(torch.ops.quantized_decomposed)" + _called_at()
    )


def _called_at() -> str:
    return f"\n  called at {user_line() or 'no known line'}"


def no_quantized_here(name: str) -> str:
    """For an operator that gives a quantized tensor in a program of XLA's."""
    return (
        f"{name} gives a quantized tensor, which no program of XLA's can hold: keep it out of the compiled function "
        "(torch.compiler.disable), or use torch.fake_quantize_per_tensor_affine"
    )


def no_sparse_here(func: OpOverload) -> str:
    """For an operator that would give a sparse tensor below functionalization."""
    return (
        f"{func.name()} gives a sparse tensor, which cannot be in a compiled function or in inference mode on xla: "
        "keep it out of there (torch.compiler.disable), or stay dense (`x.to_dense()`, sparse=False in "
        "nn.Embedding)"
    )


def with_sparse(func: OpOverload) -> str:
    """For an operator that has no kernel for sparse operands; `native/sparse_checks.h` has the same words."""
    return (
        f"{func.name()} is not implemented for sparse tensors on xla: convert them first (`x.to_dense()`), or move "
        "them to the CPU for this operator (`x.cpu()`)"
    )
