"""One direction of one recurrent layer as one operator, a loop over the steps (`lazy_runtime/recording/recurrent.py`).

The products of the inputs with their weight stand before the loop, and are no part of it. Gates lie as in torch's
weights: in, forget, cell and out of an LSTM; reset, update and new of a GRU. Formulas: torch.nn.LSTM, GRU and RNN.

Packed sequences are spread over (steps, batch). A sequence that has ended, or not begun in reverse, keeps its state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch

from ...ir import dtypes
from ...lowering.layout import Transposed
from ..indexing.indexing import IN_BOUNDS
from ..indexing.reduction import opmath
from ..kernels import Kernel, Table
from ..linalg import matmul_kernels
from ..registry import op
from . import recurrence_native
from .recurrence_native import MODES, RecurrenceProblem

_library = torch.library.Library("lazy_runtime", "FRAGMENT")
_library.define(
    "recurrence(str mode, Tensor gates, Tensor hidden, Tensor? cell, Tensor weight, Tensor? bias, Tensor? projection, "
    "Tensor? batch_sizes, bool reverse) -> (Tensor output, Tensor hidden, Tensor cell, Tensor reserve)"
)
_library.define(
    "recurrence_backward(str mode, Tensor? grad_output, Tensor? grad_hidden, Tensor? grad_cell, Tensor hidden, "
    "Tensor? cell, Tensor weight, Tensor? projection, Tensor? batch_sizes, Tensor output, Tensor reserve, "
    "ScalarType dtype, bool reverse) -> (Tensor gates, Tensor hidden, Tensor cell, Tensor weight, Tensor bias, "
    "Tensor projection)"
)

#: mode → numbers per hidden feature of the gates; of what the backward pass reads they stand in `MODES`
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def _recurrence_meta(
    mode: str, gates: Any, hidden: Any, cell: Any, weight: Any, bias: Any, projection: Any, batch_sizes: Any, *rest: Any
) -> tuple[torch.Tensor, ...]:
    steps = gates.shape[0] if batch_sizes is None else batch_sizes.shape[0]
    batch, features = hidden.shape[0], weight.shape[0] // GATES[mode]
    if mode == "lstm":
        dtype = torch.promote_types(gates.dtype, cell.dtype) if projection is None else projection.dtype
    else:
        dtype = torch.promote_types(gates.dtype, hidden.dtype) if mode == "gru" else gates.dtype
    wide = torch.float32 if dtype.itemsize < 4 else dtype
    output = gates.new_empty((*gates.shape[:-1], hidden.shape[1]), dtype=dtype)
    last_cell = cell.new_empty(cell.shape) if cell is not None else gates.new_empty(0)
    reserve = gates.new_empty((steps, batch, MODES[mode][1] * features), dtype=wide)
    return output, hidden.new_empty(hidden.shape, dtype=dtype), last_cell, reserve


def _recurrence_backward_meta(
    mode: str, grad_output: Any, grad_hidden: Any, grad_cell: Any, hidden: Any, cell: Any, weight: Any, projection: Any,
    batch_sizes: Any, output: Any, reserve: Any, dtype: torch.dtype, reverse: bool,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    gates = output.new_empty((*output.shape[:-1], weight.shape[0]), dtype=dtype)
    grad_cell = weight.new_empty(0) if cell is None else cell.new_empty(cell.shape)
    grad_projection = weight.new_empty(0 if projection is None else projection.shape)
    grads = hidden.new_empty(hidden.shape), grad_cell, weight.new_empty(weight.shape), weight.new_empty(weight.shape[0])
    return gates, *grads, grad_projection


_library.impl("recurrence", _recurrence_meta, "Meta")
_library.impl("recurrence_backward", _recurrence_backward_meta, "Meta")


class _Packing(NamedTuple):
    """Where the rows of a packed sequence stand.

    Attributes:
        valid: (steps, batch, 1) whether a sequence has this step.
        row: (steps, batch) its row, for those that have it.
        step, sequence: (rows,) the other way.
    """

    valid: Any
    row: Any
    step: Any
    sequence: Any


def _packing(batch_sizes: Any, batch: int, rows: int) -> _Packing:
    ends = jnp.cumsum(batch_sizes)
    starts = ends - batch_sizes
    number = jnp.arange(rows)
    step = jnp.searchsorted(ends, number, side="right")
    sequence = jnp.arange(batch)
    return _Packing(
        (sequence < batch_sizes[:, None])[..., None], starts[:, None] + sequence, step, number - starts[step]
    )


def _spread(x: Any, packing: _Packing | None) -> Any:
    """Rows as (steps, batch, features), zero where there are none."""
    if packing is None:
        return x
    rows = jnp.clip(packing.row, 0, x.shape[0] - 1)
    return jnp.where(packing.valid, x.at[rows].get(mode=IN_BOUNDS), 0)


def _packed(x: Any, packing: _Packing | None) -> Any:
    return x if packing is None else x[packing.step, packing.sequence]


def _chosen(valid: Any, new: Any, old: Any) -> Any:
    return new if valid is None else jnp.where(valid, new, old.astype(new.dtype))


def _before(states: Any, first: Any, reverse: bool) -> Any:
    """The states that the steps begin with, of those that they end with."""
    first = first[None].astype(states.dtype)
    return jnp.concatenate([states[1:], first] if reverse else [first, states[:-1]])


class _Products:
    """Products with the weights within the loop: a gate's sums stay in the dtype of sums."""

    def __init__(self, weight: Any, bias: Any, projection: Any, platform: str):
        self.weight, self.projection, self._platform = weight, projection, platform
        self._bias = None if bias is None else opmath(bias)

    def gates(self, hidden: Any) -> Any:
        found = opmath(matmul_kernels.linear_product(hidden.astype(self.weight.dtype), self.weight, self._platform))
        return found if self._bias is None else found + self._bias

    def projected(self, x: Any) -> Any:
        if self.projection is None:
            return x
        return opmath(matmul_kernels.linear_product(x.astype(self.projection.dtype), self.projection, self._platform))

    def hidden_gradient(self, gates: Any) -> Any:
        return self._back(gates, self.weight)

    def unprojected(self, grad: Any) -> Any:
        return grad if self.projection is None else self._back(grad, self.projection)

    def of_steps(self, grads: Any, inputs: Any, like: Any) -> Any:
        """The gradient of a weight: the sum over all steps, as one product."""
        grads, inputs = (x.reshape(-1, x.shape[-1]).astype(like.dtype) for x in (grads, inputs))
        return matmul_kernels.matmul(Transposed(grads), inputs, self._platform)

    def _back(self, grads: Any, weight: Any) -> Any:
        return opmath(matmul_kernels.matmul(grads.astype(weight.dtype), weight, self._platform))


# ---- forward: (hidden, cell or None), inputs' gates → the next ones, and what the backward pass reads


def _lstm(products: _Products, state: Any, gates: Any) -> Any:
    hidden, cell = state
    gates = opmath(gates) + products.gates(hidden)
    enter, forget, new, out = jnp.split(gates, 4, axis=-1)
    enter, forget, out = map(jax.nn.sigmoid, (enter, forget, out))
    new = jnp.tanh(new)
    cell = forget * opmath(cell) + enter * new
    return products.projected(out * jnp.tanh(cell)), cell, [enter, forget, new, out]


def _gru(products: _Products, state: Any, gates: Any) -> Any:
    hidden, _ = state
    reset, update, new = jnp.split(opmath(gates), 3, axis=-1)
    from_hidden = jnp.split(products.gates(hidden), 3, axis=-1)
    reset, update = jax.nn.sigmoid(reset + from_hidden[0]), jax.nn.sigmoid(update + from_hidden[1])
    new = jnp.tanh(new + from_hidden[2] * reset)
    return (opmath(hidden) - new) * update + new, None, [reset, update, new, from_hidden[2]]


def _rnn(activation: Callable[[Any], Any]) -> Callable[..., Any]:
    def step(products: _Products, state: Any, gates: Any) -> Any:
        return activation(opmath(gates) + products.gates(state[0])), None, []

    return step


def _relu(x: Any) -> Any:
    return jnp.where(x <= 0, 0, x)  # which keeps nans


_FORWARD = {"lstm": _lstm, "gru": _gru, "rnn_tanh": _rnn(jnp.tanh), "rnn_relu": _rnn(_relu)}


@op("lazy_runtime::recurrence", products=True, host_inputs=("batch_sizes",))
def recurrence(mode, gates, hidden, cell, weight, bias, projection, batch_sizes, reverse, *, out):
    """The inputs' gates, (steps, batch, gates) or packed → outputs, last states, what the backward pass reads."""
    arrays = [x for x in (gates, hidden, cell, weight, bias) if x is not None]
    problem = RecurrenceProblem(
        mode,
        tuple(gates.shape),
        weight.shape[0] // GATES[mode],
        frozenset(str(x.dtype) for x in arrays),
        out[0].device.platform,
        batch_sizes is not None,
        projection is not None,
    )
    kernel = RECURRENCE.choose(problem)
    assert kernel.lower is not None
    return kernel.lower(mode, gates, hidden, cell, weight, bias, projection, batch_sizes, reverse, out)


def _loop(mode, gates, hidden, cell, weight, bias, projection, batch_sizes, reverse, out):
    """All steps in a loop of XLA's."""
    dtype, wide = dtypes.to_numpy(out[0].dtype), dtypes.to_numpy(out[3].dtype)
    products = _Products(weight, bias, projection, out[0].device.platform)
    packing = None if batch_sizes is None else _packing(batch_sizes, hidden.shape[0], gates.shape[0])
    valid = None if packing is None else packing.valid

    def turn(state: Any, now: Any) -> Any:
        gates, valid = now
        hidden, cell, kept = _FORWARD[mode](products, state, gates)
        hidden = _chosen(valid, hidden.astype(dtype), state[0])
        if cell is not None:
            cell = _chosen(valid, cell.astype(state[1].dtype), state[1])
            kept = [*kept, opmath(cell)]
        kept = jnp.concatenate(kept, -1).astype(wide) if kept else jnp.zeros((hidden.shape[0], 0), wide)
        return (hidden, cell), (hidden, kept)

    start = hidden.astype(dtype), cell
    (last, last_cell), (outputs, reserve) = jax.lax.scan(turn, start, (_spread(gates, packing), valid), reverse=reverse)
    return _packed(outputs, packing), last, jnp.zeros(0, gates.dtype) if cell is None else last_cell, reserve


RECURRENCE = Table("recurrence", [recurrence_native.KERNEL, Kernel("loop", lambda problem: True, _loop)])


# ---- backward: gradients of a step's results → those of its gates, of the gates' part from the hidden state, and of
# the states before it


def _lstm_backward(products: _Products, grads: Any, kept: Any, before: Any) -> Any:
    grad, grad_cell = grads
    enter, forget, new, out, cell = jnp.split(kept, 5, axis=-1)
    _, cell_before = before
    squashed = jnp.tanh(cell)
    grad = products.unprojected(grad)
    grad_cell = grad_cell + grad * out * (1 - squashed * squashed)
    gates = jnp.concatenate(
        [
            grad_cell * new * enter * (1 - enter),
            grad_cell * cell_before * forget * (1 - forget),
            grad_cell * enter * (1 - new * new),
            grad * squashed * out * (1 - out),
        ],
        -1,
    )
    return gates, gates, products.hidden_gradient(gates), grad_cell * forget


def _gru_backward(products: _Products, grads: Any, kept: Any, before: Any) -> Any:
    grad, _ = grads
    reset, update, new, from_hidden = jnp.split(kept, 4, axis=-1)
    grad_new = grad * (1 - update) * (1 - new * new)
    grad_update = grad * (opmath(before[0]) - new) * update * (1 - update)
    grad_reset = grad_new * from_hidden * reset * (1 - reset)
    gates = jnp.concatenate([grad_reset, grad_update, grad_new], -1)
    of_hidden = jnp.concatenate([grad_reset, grad_update, grad_new * reset], -1)
    return gates, of_hidden, grad * update + products.hidden_gradient(of_hidden), None


def _rnn_backward(derivative: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def step(products: _Products, grads: Any, output: Any, before: Any) -> Any:
        gates = derivative(grads[0], opmath(output))
        return gates, gates, products.hidden_gradient(gates), None

    return step


_BACKWARD = {
    "lstm": _lstm_backward,
    "gru": _gru_backward,
    "rnn_tanh": _rnn_backward(lambda grad, y: grad * (1 - y * y)),
    "rnn_relu": _rnn_backward(lambda grad, y: jnp.where(y <= 0, 0, grad)),
}


@op("lazy_runtime::recurrence_backward", products=True, host_inputs=("batch_sizes",))
def recurrence_backward(
    mode, grad_output, grad_hidden, grad_cell, hidden, cell, weight, projection, batch_sizes, output, reserve, dtype,
    reverse, *, out,
):  # fmt: skip
    products = _Products(weight, None, projection, out[0].device.platform)
    packing = None if batch_sizes is None else _packing(batch_sizes, hidden.shape[0], output.shape[0])
    valid = None if packing is None else packing.valid
    outputs = _spread(output, packing)
    wide = opmath(outputs).dtype
    # what a step begins with: where there was none before, the first state
    hiddens = _before(
        outputs if valid is None else jnp.where(valid, outputs, hidden.astype(output.dtype)), hidden, reverse
    )
    cells = None if cell is None else _before(reserve[..., -cell.shape[-1] :], cell, reverse)
    kept = reserve if reserve.shape[-1] else outputs

    def or_zeros(grad: Any, like: Any) -> Any:
        return jnp.zeros(like.shape, wide) if grad is None else grad.astype(wide)

    def turn(grads: Any, now: Any) -> Any:
        grad, kept, valid, hidden, cell = now
        grads = grads if grad is None else (grads[0] + grad.astype(wide), grads[1])
        gates, of_hidden, before, cell_before = _BACKWARD[mode](products, grads, kept, (hidden, cell))
        following = before.astype(wide), None if cell_before is None else cell_before.astype(wide)
        if valid is not None:
            gates, of_hidden = jnp.where(valid, gates, 0), jnp.where(valid, of_hidden, 0)
            following = jax.tree.map(lambda new, old: jnp.where(valid, new, old), following, grads)
        return following, (gates, of_hidden if mode == "gru" else None, grads[0] if projection is not None else None)

    start = or_zeros(grad_hidden, hidden), None if cell is None else or_zeros(grad_cell, cell)
    grads = None if grad_output is None else _spread(grad_output, packing)
    (first, first_cell), (gates, of_hidden, projected) = jax.lax.scan(
        turn, start, (grads, kept, valid, hiddens, cells), reverse=not reverse
    )
    of_hidden = gates if of_hidden is None else of_hidden
    grad_projection = jnp.zeros(0, weight.dtype)
    if projection is not None:
        *_, gate, cell_after = jnp.split(reserve, 5, axis=-1)
        projected = projected if valid is None else jnp.where(valid, projected, 0)
        grad_projection = products.of_steps(projected, gate * jnp.tanh(cell_after), projection)
    return (
        _packed(gates, packing).astype(dtypes.to_numpy(out[0].dtype)),
        first.astype(hidden.dtype),
        jnp.zeros(0, weight.dtype) if cell is None or first_cell is None else first_cell.astype(cell.dtype),
        products.of_steps(of_hidden, hiddens, weight),
        of_hidden.sum((0, 1)).astype(weight.dtype),
        grad_projection,
    )
