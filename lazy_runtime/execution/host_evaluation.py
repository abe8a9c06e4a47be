"""Operators on small tensors of integers, computed by torch's CPU kernels between two programs.

What needs them is at `growing.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import jax
import numpy as np
import torch

from ..common import metrics
from ..ir import lifetimes
from ..ir.graph import Call, Handle, Node, Value
from ..ir.spec import TensorSpec
from ..ops import registry
from ..platform.xla_devices import Device
from ..tensor.host_arrays import from_numpy
from . import execute, transfer

#: The elements of a small tensor. To fetch more and to put them back would take too long.
MOST_ELEMENTS = 1 << 16

_FULL = "aten::full"
#: What reads elements in the order in which they lie in memory.
MEMORY = "aten::as_strided"
_PAD = "aten::constant_pad_nd"


def is_small(call: Call) -> bool:
    """Whether a call makes one small tensor of integers of such tensors, by an operator of torch's that never fails."""
    if call.arguments is None or call.meaning is None or call.container is not None or len(call.outputs) != 1:
        return False
    operator = call.meaning[0]
    if registry.table.get(operator.overload) is not operator or call.name.startswith(MEMORY):
        return False  # of the user's, or a part of one of torch's (`recording/data_dependent.py`)
    if call.random or call.fallible or call.collective:
        return False
    return all(
        spec is not None
        and not spec.dtype.is_floating_point
        and not spec.dtype.is_complex
        and spec.numel <= MOST_ELEMENTS
        for spec in (*call.inputs, *call.outputs)
    )


def handle_of(node: Node) -> Handle | None:
    """The handle of a node's only result, if somebody can read it."""
    owner = node.outputs[0] if node.outputs else None
    return None if owner is None else owner()


class HostEvaluation:
    """Computes nodes by torch's CPU kernels: `take` chooses them, `fetch` reads their operands, `bind` does the work.

    The caller runs `bind` in a thread that has no modes of torch.

    Args:
        leaves: identities of the values that grow. A result grows with them unless it has fewer elements, or was padded
            to its size.
        is_turn: something is made longer. Then truth values that Python gives are computed here too: whether the loop
            has reached its last turn is one of them.
    """

    def __init__(self, device: Device, leaves: set[int], is_turn: bool = False):
        self._device = device
        self._leaves = leaves
        self._is_turn = is_turn
        self._taken: dict[Node, None] = {}
        self._operands: dict[int, np.ndarray] = {}
        self._results: dict[Node, torch.Tensor] = {}
        self._growing: set[Node] = set()

    def take(self, node: Node) -> bool:
        """Takes a node if it depends on a value that grows, and all its operands are there or have been taken."""
        call = node.call
        grows = any(value.node in self._growing or id(value) in self._leaves for value in node.inputs)
        if not grows and not (self._is_turn and _is_truth_value(call)):
            return False
        if not is_small(call) or not all(map(self._has, node.inputs)):
            return False
        self._taken[node] = None
        (output,) = call.outputs
        assert output is not None
        if grows and call.name != _PAD and output.numel >= max(spec.numel for spec in call.inputs):
            self._growing.add(node)
        return True

    def _has(self, value: Value) -> bool:
        return value.array is not None if value.node is None else value.node in self._taken

    def fetch(self) -> None:
        """Reads the operands of what was taken from the device, and waits for them.

        Raises:
            what went wrong in the program of an operand.
        """
        for value in (value for node in self._taken for value in node.inputs if value.node is None):
            if id(value) not in self._operands:
                try:
                    self._operands[id(value)] = transfer.to_array(execute.array_of(value, self._device))
                except jax.errors.JaxRuntimeError:
                    self._device.wait()  # the execution that failed raises what it means
                    raise

    def _compute(self, node: Node) -> torch.Tensor:
        call = node.call
        assert call.arguments is not None
        assert call.meaning is not None
        tensors = [self._tensor(value, spec) for value, spec in zip(node.inputs, call.inputs, strict=True)]
        args, kwargs = call.arguments(tensors, node.floats, node.ints)
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        metrics.count("ComputedOnHost")
        return call.meaning[0].overload(*args, **kwargs)

    def _tensor(self, value: Value, spec: TensorSpec) -> torch.Tensor:
        if value.node is not None:
            found = self._results[value.node]
        else:
            found = from_numpy(self._operands[id(value)]).to(spec.dtype)
        # an operator that keeps its operand's order of memory gives the recorded one
        return transfer.restride(found.contiguous(), spec)

    def bind(self, readers: Sequence[Node]) -> tuple[set[int], list[weakref.ref[Handle]]]:
        """Computes what was taken, and puts results on the device: those that somebody can read, and those that a node
        reads.

        Returns:
            the identities of their values, and the owners of those that grow.
        """
        for node in self._taken:
            self._results[node] = self._compute(node)
        values: dict[int, tuple[Value, Node]] = {}
        handles = [handle.value for node in self._results if (handle := handle_of(node)) is not None]
        # who has let go of a handle by now has its reader on the list (`linearization._kept_for`)
        others = tuple(self._device.pending)
        for value in (*handles, *[value for node in (*readers, *others) for value in node.inputs]):
            if value.node is not None and value.node in self._results:
                values[id(value)] = value, value.node
        arrays = {node: transfer.upload(self._results[node], self._device) for _, node in values.values()}
        growing = [value.owner for value, node in values.values() if node in self._growing and value.owner is not None]
        for value, node in values.values():
            value.array = arrays[node]
            value.node = None
        lifetimes.bound(len(handles))
        return set(values), growing


def _is_truth_value(call: Call) -> bool:
    return call.name == _FULL and call.outputs[0] is not None and call.outputs[0].dtype is torch.bool
