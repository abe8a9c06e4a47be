"""A GRU whose time steps are one `scan`: a loop of the program, compiled once for any length."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence

from .scan import scan

__all__ = ["GRU"]


_Torchs = nn.GRU


class GRU(_Torchs):
    """`torch.nn.GRU` of one direction, with the same parameters, formulas, inputs and outputs, by `scan`.

    With `bidirectional=True` the class gives a `torch.nn.GRU`, and warns.

    Args:
        args, kwargs: see `torch.nn.GRU`.

    Raises:
        ValueError: `proj_size` is given, which a GRU does not have.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("bidirectional", False):
            warnings.warn("GRU by scan has one direction: this is a torch.nn.GRU", stacklevel=2)
            return _Torchs(*args, **kwargs)
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if self.bidirectional:  # by position
            raise ValueError("GRU by scan has one direction: use torch.nn.GRU, or pass bidirectional by name")

    def forward(self, input: Any, hx: torch.Tensor | None = None) -> Any:  # type: ignore[override]
        """See `torch.nn.GRU`.

        Args:
            input: [length, batch, features], [batch, length, features] with `batch_first`, or [length, features].
            hx: [layers, batch, hidden] or [layers, hidden]; zeros by default.

        Returns:
            the last layer's hidden states of all steps, shaped as `input`, and each layer's of the last step, as `hx`.

        Raises:
            TypeError: the input is a `PackedSequence`.
            ValueError, RuntimeError: torch's own, for other shapes.
        """
        if isinstance(input, PackedSequence):
            raise TypeError("GRU by scan takes no PackedSequence: pass a tensor, or use torch.nn.GRU")
        if input.dim() not in (2, 3):
            raise ValueError(f"GRU: Expected input to be 2D or 3D, got {input.dim()}D tensor instead")
        is_batched = input.dim() == 3
        if hx is not None and hx.dim() != input.dim():
            kind = "batched 3-D" if is_batched else "unbatched 2-D"
            raise RuntimeError(f"For {kind} input, hx should also be {input.dim()}-D but got {hx.dim()}-D tensor")
        if not is_batched:
            input = input.unsqueeze(1)
        elif self.batch_first:
            input = input.transpose(0, 1)
        if hx is None:
            hx = input.new_zeros(self.num_layers, input.shape[1], self.hidden_size)
        elif not is_batched:
            hx = hx.unsqueeze(1)
        self.check_forward_args(input.transpose(0, 1) if self.batch_first else input, hx, None)  # type: ignore[arg-type]
        output, last = input, []
        assert hx is not None
        for layer in range(self.num_layers):
            output, hidden = _layer(self, layer, output, hx[layer])
            last.append(hidden)
            if layer < self.num_layers - 1 and self.dropout:
                output = functional.dropout(output, self.dropout, self.training)
        hidden = torch.stack(last)
        if not is_batched:
            return output.squeeze(1), hidden.squeeze(1)
        return (output.transpose(0, 1) if self.batch_first else output), hidden


def _layer(gru: GRU, layer: int, input: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh") if gru.bias else ("weight_ih", "weight_hh")
    # gradients go to what is carried, not to what a function holds
    weights = {name: getattr(gru, f"{name}_l{layer}") for name in names}
    carry, output = scan(_step, {"hidden": hidden, **weights}, input, is_fn_pure=True)
    return output, carry["hidden"]


def _step(carry: dict[str, torch.Tensor], x: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """One step, by the formulas of `torch.nn.GRU`: x is [batch, features], the hidden state [batch, hidden]."""
    hidden = carry["hidden"]
    of_input = functional.linear(x, carry["weight_ih"], carry.get("bias_ih")).chunk(3, 1)
    of_hidden = functional.linear(hidden, carry["weight_hh"], carry.get("bias_hh")).chunk(3, 1)
    reset = torch.sigmoid(of_input[0] + of_hidden[0])
    update = torch.sigmoid(of_input[1] + of_hidden[1])
    new = torch.tanh(of_input[2] + reset * of_hidden[2])
    hidden = (1 - update) * new + update * hidden
    return {**carry, "hidden": hidden}, hidden
