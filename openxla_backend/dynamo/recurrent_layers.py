"""Recurrent layers in what Dynamo traces for `backend="openxla"`, before they are taken apart.

Dynamo leaves `torch.nn.LSTM`, `GRU` and `RNN` to Python unless `torch._dynamo.config.allow_rnn` is set. Its reason is
the number of their operators, which are one here for each direction of each layer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lazy_runtime.compat import dynamo
from lazy_runtime.compat.dynamo import TorchInGraphFunctionVariable, config
from lazy_runtime.platform import xla_devices
from lazy_runtime.recording import recurrent

from .step_capture import is_for
from .traced_optimizers import Ours


def lstm(*args: Any) -> Any:
    """`torch.lstm` as one operator for each direction of each layer, on tensors of any device."""
    return recurrent.traced("lstm", torch.lstm, args)


def gru(*args: Any) -> Any:
    """`torch.gru`, see `lstm`."""
    return recurrent.traced("gru", torch.gru, args)


def rnn_tanh(*args: Any) -> Any:
    """`torch.rnn_tanh`, see `lstm`."""
    return recurrent.traced("rnn_tanh", torch.rnn_tanh, args)


def rnn_relu(*args: Any) -> Any:
    """`torch.rnn_relu`, see `lstm`."""
    return recurrent.traced("rnn_relu", torch.rnn_relu, args)


_WHOLE: dict[Any, Any] = {
    torch.lstm: lstm,
    torch.gru: gru,
    torch.rnn_tanh: rnn_tanh,
    torch.rnn_relu: rnn_relu,
}


def is_possible() -> bool:
    """Whether this version of torch can be made to trace recurrent layers."""
    return all(row.holds() for row in dynamo.LAYERS)


@functools.cache
def trace_layers(backends: Sequence[Callable[..., Any]]) -> None:
    """Makes Dynamo trace recurrent layers.

    Args:
        backends: the functions for which it is to do so.
    """
    if not is_possible():
        return
    ours = is_for(backends)
    for function in _WHOLE.values():
        torch.compiler.allow_in_graph(function)
    _allow_modules(ours)
    _keep_whole(ours)


def _allow_modules(ours: Ours) -> None:
    original = dynamo.wrap_module.get()

    @functools.wraps(original)
    def wrap_module(self: Any, value: torch.nn.Module) -> Any:
        if not isinstance(value, torch.nn.RNNBase) or not ours(self.tx.output):
            return original(self, value)
        with config.patch(allow_rnn=True):
            return original(self, value)

    dynamo.wrap_module.set(wrap_module)


def _keep_whole(ours: Ours) -> None:
    original = dynamo.call_torch_function.get()

    @functools.wraps(original)
    def call_function(self: TorchInGraphFunctionVariable, tx: Any, args: Any, kwargs: Any) -> Any:
        whole = _WHOLE.get(self.value) if isinstance(self.value, _BUILTIN) else None
        if whole is None or kwargs or not ours(tx.output):
            return original(self, tx, args, kwargs)
        xla_devices.start()  # defines the operator
        return original(TorchInGraphFunctionVariable(whole), tx, args, kwargs)

    dynamo.call_torch_function.set(call_function)


_BUILTIN = type(torch.lstm)
