"""Recurrent layers (LSTM, GRU, RNN) on xla, and in what `backend="openxla"` compiles.

Each direction of each layer is one operator, a loop over the steps (`ops/nn/recurrent.py`). Torch would take the layer
apart into the operators of each step, and a program of them takes minutes to compile.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from ..compat.torch import DispatchKey, OpOverload, forward_level_of, kernel_call_of, peek_interpreter_stack
from ..ops import registry
from ..ops.nn.recurrent import GATES

aten = torch.ops.aten
_COMPOSITE = DispatchKey.CompositeImplicitAutograd

#: Arguments of the operator of one direction (`lazy_runtime::recurrence`).
_ARGUMENTS = ("mode", "gates", "hidden", "cell", "weight", "bias", "projection", "batch_sizes", "reverse")


class _Call(NamedTuple):
    """A call of `torch.lstm` or its like, padded or packed.

    Attributes:
        mode: `lstm`, `gru`, `rnn_tanh` or `rnn_relu`.
        input: (steps, batch, features), or (rows, features) where packed.
        batch_sizes: (steps,) where packed.
        hidden, cell: (layers · directions, batch, features); only LSTMs have cells.
        weights: for each layer and direction those of the input, of the hidden state, two biases where there are
            some, and a projection where there is one.
        batch_first: whether the outputs are (batch, steps, features).
    """

    mode: str
    input: torch.Tensor
    batch_sizes: torch.Tensor | None
    hidden: torch.Tensor
    cell: torch.Tensor | None
    weights: Sequence[Sequence[torch.Tensor]]
    has_biases: bool
    dropout: float
    bidirectional: bool
    batch_first: bool


def _of(mode: str, is_packed: bool, args: Sequence[Any]) -> _Call | None:
    """What the arguments of `aten::lstm.input` or its like say, None if torch defines no such layer."""
    batch_first = False
    if is_packed:
        inputs, batch_sizes, state, parameters, has_biases, layers, dropout, train, bidirectional = args
    else:
        inputs, state, parameters, has_biases, layers, dropout, train, bidirectional, batch_first = args
        batch_sizes = None
    states = list(state) if mode == "lstm" else [state]
    if len(states) != (2 if mode == "lstm" else 1) or any(x.ndim != 3 for x in states):
        return None
    if inputs.ndim != (2 if is_packed else 3):
        return None
    is_projected = mode == "lstm" and states[0].shape[2] != states[1].shape[2]
    each = (4 if has_biases else 2) + is_projected
    if len(parameters) != layers * (2 if bidirectional else 1) * each:
        return None
    weights = [list(parameters[first : first + each]) for first in range(0, len(parameters), each)]
    inputs = inputs.transpose(0, 1) if batch_first else inputs
    dropout = dropout if train else 0.0
    cell = states[1] if mode == "lstm" else None
    return _Call(mode, inputs, batch_sizes, states[0], cell, weights, has_biases, dropout, bidirectional, batch_first)


def _is_loop(call: _Call, mixed: bool = False) -> bool:
    """Whether the operator takes these tensors. What has no meaning is left for torch to refuse.

    Args:
        mixed: states may have another dtype, as under `autocast`.
    """
    directions = 2 if call.bidirectional else 1
    states = [call.hidden] if call.cell is None else [call.hidden, call.cell]
    tensors = [call.input, *states, *(x for each in call.weights for x in each)]
    if any(x.device != call.input.device or x.layout is not torch.strided for x in tensors):
        return False
    if not all(x.is_floating_point() and (mixed or x.dtype == call.input.dtype) for x in tensors):
        return False
    batch, hidden = call.hidden.shape[1], call.hidden.shape[2]
    if (
        any(x.shape[:2] != (len(call.weights), batch) for x in states)
        or 0 in call.input.shape
        or 0 in call.hidden.shape
    ):
        return False
    if call.batch_sizes is None:
        if call.input.shape[1] != batch:
            return False
    elif not _are_sizes(call.batch_sizes, call.input.shape[0], batch):
        return False
    features = states[-1].shape[2]
    rows = GATES[call.mode] * features
    for number, (of_input, of_hidden, *others) in enumerate(call.weights):
        width = call.input.shape[-1] if number < directions else directions * hidden
        expected = [(rows,), (rows,)] if call.has_biases else []
        expected += [(hidden, features)] if hidden != features else []
        if of_input.shape != (rows, width) or of_hidden.shape != (rows, hidden):
            return False
        if any(x.shape != shape for x, shape in zip(others, expected, strict=True)):
            return False
    return not _transformed() and 0 <= call.dropout <= 1


def _are_sizes(batch_sizes: torch.Tensor, rows: Any, batch: Any) -> bool:
    """Whether they are what packing gives. Within a graph their values are not known."""
    if batch_sizes.ndim != 1 or batch_sizes.dtype is not torch.int64 or batch_sizes.shape[0] == 0:
        return False
    if batch_sizes.device.type != "cpu":
        return False
    if type(batch_sizes) is not torch.Tensor:
        return True
    found = batch_sizes.tolist()
    return sum(found) == rows and found[0] == batch and found == sorted(found, reverse=True) and found[-1] > 0


def _transformed() -> bool:
    """Whether torch.func or forward-mode derivatives are at work, which the operator does not know."""
    return peek_interpreter_stack() is not None or forward_level_of(torch.autograd.forward_ad) >= 0


def _run(call: _Call) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
    """Outputs, and the last states of each layer and direction."""
    directions = 2 if call.bidirectional else 1
    x, hiddens, cells = call.input, [], []
    layers = len(call.weights) // directions
    for layer in range(layers):
        outputs = []
        for reverse in range(directions):
            number = layer * directions + reverse
            output, hidden, cell = _direction(call, x, number, bool(reverse))
            outputs.append(output)
            hiddens.append(hidden)
            cells.append(cell)
        x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        if call.dropout and layer < layers - 1:
            x = torch.dropout(x, call.dropout, True)
    return x, hiddens, cells


def _direction(call: _Call, x: torch.Tensor, number: int, reverse: bool) -> tuple[torch.Tensor, ...]:
    of_input, of_hidden, *others = call.weights[number]
    biases = others[:2] if call.has_biases else [None, None]
    projection = others[-1] if len(others) % 2 else None
    gates = F.linear(x, of_input, biases[0])
    cell = None if call.cell is None else call.cell[number]
    return torch.ops.lazy_runtime.recurrence(
        call.mode, gates, call.hidden[number], cell, of_hidden, biases[1], projection, call.batch_sizes, reverse
    )[:3]


def _kernel(mode: str, is_packed: bool, overload: OpOverload, *args: Any) -> Any:
    """`aten::lstm.input` and its like for xla tensors."""
    call = _of(mode, is_packed, args)
    if call is None or not _is_loop(call):
        return kernel_call_of(overload)(_COMPOSITE, *args)
    return _results(call)


def traced(mode: str, function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """The same where Dynamo has traced a call of torch's function, on tensors of any device.

    Args:
        function: torch's, for what the operator does not take, and for xla tensors, which reach it in any case.
    """
    x = args[0]
    call = None if x.device.type == "xla" else _of(mode, not isinstance(args[3], bool), args)
    is_cast = call is not None and torch.is_autocast_enabled(x.device.type)
    if call is not None and is_cast:
        call = _as_autocast(call, torch.get_autocast_dtype(x.device.type))
    if call is None or not _is_loop(call, mixed=is_cast):
        return function(*args)
    return _results(call)


def _as_autocast(call: _Call, dtype: torch.dtype) -> _Call:
    """The call with the casts of torch's kernels on the CPU: oneDNN's LSTM casts all, other layers their products."""

    def cast(x: torch.Tensor) -> torch.Tensor:
        return x.to(dtype) if x.is_floating_point() and x.dtype is not torch.float64 else x

    call = call._replace(input=cast(call.input), weights=[[cast(x) for x in each] for each in call.weights])
    is_projected = call.cell is not None and call.cell.shape[2] != call.hidden.shape[2]
    if call.cell is None or is_projected or call.batch_sizes is not None or not torch.backends.mkldnn.enabled:
        return call
    return call._replace(hidden=cast(call.hidden), cell=cast(call.cell))


def _results(call: _Call) -> Any:
    x, hiddens, cells = _run(call)
    if not call.bidirectional:  # else two of them were put together
        x = x.clone()  # what is saved for the gradients is not what users write to
    x = x.transpose(0, 1) if call.batch_first else x
    return x, torch.stack(hiddens), *([torch.stack(cells)] if call.mode == "lstm" else [])


# ---- derivatives


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    ctx.mode, *tensors, ctx.reverse = inputs
    ctx.save_for_backward(*tensors, output[0], output[3])
    ctx.mark_non_differentiable(*(output[3:] if tensors[2] is not None else output[2:]))
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
    given = grads[:3] if ctx.mode == "lstm" else (*grads[:2], None)
    if all(grad is None for grad in given):
        return (None,) * len(_ARGUMENTS)
    gates, hidden, cell, weight, bias, projection, batch_sizes, output, reserve = ctx.saved_tensors
    if torch.is_grad_enabled():
        return None, *_differentiable_gradients(ctx, given, gates, hidden, cell, weight, bias, projection), None, None
    found = torch.ops.lazy_runtime.recurrence_backward(
        ctx.mode, *given, hidden, cell, weight, projection, batch_sizes, output, reserve, gates.dtype, ctx.reverse
    )
    needed = ctx.needs_input_grad[1:7]
    return None, *(grad if wanted else None for grad, wanted in zip(found, needed, strict=True)), None, None


def _differentiable_gradients(
    ctx: Any, grads: Sequence[Any], *inputs: torch.Tensor | None
) -> list[torch.Tensor | None]:
    """The gradients by way of the operators of each step, which have second ones."""
    batch_sizes = ctx.saved_tensors[6]
    # tensors of their own: a state that is made of the weights gives these no part of its gradient
    own = [None if x is None else x.view_as(x) for x in inputs]
    results = _steps(ctx.mode, own, batch_sizes, ctx.reverse)
    needed = ctx.needs_input_grad[1:7]
    wanted = [x for x, is_needed in zip(own, needed, strict=True) if x is not None and is_needed]
    pairs = [(x, grad) for x, grad in zip(results, grads, strict=False) if grad is not None and x.requires_grad]
    outputs, weights = [x for x, _ in pairs], [grad for _, grad in pairs]
    found = iter(torch.autograd.grad(outputs, wanted, weights, create_graph=True, allow_unused=True))
    return [next(found) if x is not None and is_needed else None for x, is_needed in zip(own, needed, strict=True)]


def _steps(mode: str, inputs: Sequence[Any], batch_sizes: Any, reverse: bool) -> tuple[torch.Tensor, ...]:
    """The first results of `lazy_runtime::recurrence` in other operators, step by step: outputs and last states.

    Args:
        inputs: its tensors but for the batch sizes.
    """
    gates, hidden, cell, weight, bias, projection = inputs
    sizes = [hidden.shape[0]] * gates.shape[0] if batch_sizes is None else batch_sizes.tolist()
    each = gates.flatten(0, 1).split(sizes) if batch_sizes is None else gates.split(sizes)
    state = [hidden] if cell is None else [hidden, cell]
    outputs = []
    for now, size in zip(reversed(each) if reverse else each, reversed(sizes) if reverse else sizes, strict=True):
        before = [x[:size] for x in state]
        new = _step(mode, now, before, F.linear(before[0], weight, bias), projection)
        outputs.append(new[0])
        state = [torch.cat([x, old[size:]]) for x, old in zip(new, state, strict=True)]
    outputs = torch.cat(outputs[::-1] if reverse else outputs)
    return outputs if batch_sizes is not None else outputs.unflatten(0, gates.shape[:2]), *state


def _step(mode: str, gates: Any, state: Sequence[Any], from_hidden: Any, projection: Any) -> list[torch.Tensor]:
    if mode == "lstm":
        enter, forget, new, out = (gates + from_hidden).chunk(4, -1)
        cell = forget.sigmoid() * state[1] + enter.sigmoid() * new.tanh()
        hidden = out.sigmoid() * cell.tanh()
        return [hidden if projection is None else F.linear(hidden, projection), cell]
    if mode == "gru":
        parts = zip(gates.chunk(3, -1), from_hidden.chunk(3, -1), strict=True)
        (reset, reset_of_hidden), (update, update_of_hidden), (new, new_of_hidden) = parts
        new = (new + new_of_hidden * (reset + reset_of_hidden).sigmoid()).tanh()
        return [(state[0] - new) * (update + update_of_hidden).sigmoid() + new]
    return [torch.tanh(gates + from_hidden) if mode == "rnn_tanh" else torch.relu(gates + from_hidden)]


def register(library: torch.library.Library) -> None:
    """Registers these with torch's dispatcher."""
    for mode in GATES:
        for form in ("input", "data"):
            overload = registry.overload(f"aten::{mode}.{form}")
            assert overload is not None
            kernel = functools.partial(_kernel, mode, form == "data", overload)
            library.impl(overload, kernel, "AutogradXLA")
            library.impl(overload, kernel, "Functionalize")  # inference mode skips autograd's keys
    torch.library.register_autograd("lazy_runtime::recurrence", _gradients, setup_context=_save)
