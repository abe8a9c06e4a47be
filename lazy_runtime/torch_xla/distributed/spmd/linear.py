"""Linear layers whose gradients are products that a sharding follows through, without a reshape of all dimensions."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

__all__ = ["EinsumLinear", "XLAPatchedLinear", "apply_xla_patch_to_nn_linear", "xla_patched_nn_linear_forward"]


class XLAPatchedLinear(torch.autograd.Function):
    """`XLAPatchedLinear.apply(input, weight, bias)`: torch's linear layer by einsum, forward and backward.

    The dimensions of the input stay apart, so that the partitioner sees which of them are cut. In the backward pass the
    weight itself is used, and no view of it.
    """

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        dtype = torch.get_autocast_dtype("xla") if torch.is_autocast_enabled("xla") else None
        ctx.dtypes = input.dtype, weight.dtype, None if bias is None else bias.dtype
        if dtype is not None:
            input, weight, bias = (None if x is None else x.to(dtype) for x in (input, weight, bias))  # type: ignore
        ctx.save_for_backward(input, weight)
        product = torch.einsum("...n,mn->...m", input, weight)
        return product if bias is None else product + bias

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        input, weight = ctx.saved_tensors
        of_input = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_input = torch.einsum("...m,mn->...n", gradient, weight).to(ctx.dtypes[0])
        if ctx.needs_input_grad[1]:
            of_weight = torch.einsum("...m,...n->mn", gradient, input).to(ctx.dtypes[1])
        if len(ctx.needs_input_grad) > 2 and ctx.needs_input_grad[2]:
            of_bias = torch.einsum("...m->m", gradient).to(ctx.dtypes[2])
        return of_input, of_weight, of_bias


def xla_patched_nn_linear_forward(m: nn.Linear, input: torch.Tensor) -> torch.Tensor:
    """A linear layer's forward by `XLAPatchedLinear`."""
    return XLAPatchedLinear.apply(input, m.weight, m.bias)  # type: ignore[return-value]


class EinsumLinear(nn.Linear):
    """A linear layer by `XLAPatchedLinear`, with the arguments of `torch.nn.Linear`."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """[..., inputs] to [..., outputs]."""
        if input.device.type != "xla":
            return functional.linear(input, self.weight, self.bias)
        return xla_patched_nn_linear_forward(self, input)


def apply_xla_patch_to_nn_linear(module: nn.Module) -> nn.Module:
    """Puts an `EinsumLinear` in the place of each linear layer within a module, with the same parameters.

    Args:
        module: changed in place, and returned. Classes that inherit from `torch.nn.Linear` stay as they are.
    """
    for name, child in module.named_children():
        if type(child) is not nn.Linear:
            apply_xla_patch_to_nn_linear(child)
            continue
        made = EinsumLinear(child.in_features, child.out_features, child.bias is not None, device="meta")
        made.weight, made.bias = child.weight, child.bias
        made.train(child.training)
        setattr(module, name, made)
    return module
