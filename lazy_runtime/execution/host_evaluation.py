"""Operators on small tensors of integers, computed by torch's CPU kernels between two programs.

What needs them is at `growing.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import jax
import torch

from ..common import interrupts, metrics
from ..compat.torch import DisableTorchDispatch
from ..ir import lifetimes
from ..ir.graph import Call, Handle, Node, Value
from ..ir.spec import TensorSpec
from ..platform.xla_devices import Device
from . import execute, transfer

#: The elements of a small tensor. To fetch more and to put them back would take too long.
MOST_ELEMENTS = 1 << 16

_FULL = "aten::full"
_PAD = "aten::constant_pad_nd"


def is_small(call: Call) -> bool:
    """Whether a call makes one small tensor of integers of such tensors, by an operator of torch's that never fails."""
    if call.arguments is None or call.container is not None or not call.name.startswith("aten::"):
        return False
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
    """Computes nodes by torch's CPU kernels.

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
        self._results: dict[Node, torch.Tensor] = {}
        self._growing: set[Node] = set()

    def compute(self, node: Node) -> bool:
        """Computes a node if it depends on a value that grows, and all its operands are there.

        Raises:
            what went wrong in the program of an operand.
        """
        call = node.call
        grows = any(value.node in self._growing or id(value) in self._leaves for value in node.inputs)
        if not grows and not (self._is_turn and _is_truth_value(call)):
            return False
        if call.arguments is None or call.meaning is None or not is_small(call) or not all(map(self._has, node.inputs)):
            return False
        tensors = [self._tensor(value, spec) for value, spec in zip(node.inputs, call.inputs, strict=True)]
        args, kwargs = call.arguments(tensors, node.floats, node.ints)
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        with DisableTorchDispatch(), torch.no_grad():
            result = call.meaning[0].overload(*args, **kwargs)
        metrics.count("ComputedOnHost")
        self._results[node] = result
        if grows and call.name != _PAD and result.numel() >= max(spec.numel for spec in call.inputs):
            self._growing.add(node)
        return True

    def _has(self, value: Value) -> bool:
        return value.array is not None if value.node is None else value.node in self._results

    def _tensor(self, value: Value, spec: TensorSpec) -> torch.Tensor:
        if value.node is not None:
            return self._results[value.node]
        try:
            return transfer.download(execute.array_of(value, self._device)).to(spec.dtype)
        except jax.errors.JaxRuntimeError:
            self._device.wait()  # the execution that failed raises what it means
            raise

    def bind(self, readers: Sequence[Node]) -> tuple[set[int], list[weakref.ref[Handle]]]:
        """Puts results on the device: those that somebody can read, and those that a node reads.

        Returns:
            the identities of their values, and the owners of those that grow.
        """
        values: dict[int, tuple[Value, Node]] = {}
        handles = [handle.value for node in self._results if (handle := handle_of(node)) is not None]
        for value in (*handles, *[value for node in readers for value in node.inputs]):
            if value.node is not None and value.node in self._results:
                values[id(value)] = value, value.node
        arrays = {node: transfer.upload(self._results[node], self._device) for _, node in values.values()}
        growing = [value.owner for value, node in values.values() if node in self._growing and value.owner is not None]
        with interrupts.deferred():
            for value, node in values.values():
                value.array = arrays[node]
                value.node = None
        lifetimes.bound(len(handles))
        return set(values), growing


def _is_truth_value(call: Call) -> bool:
    return call.name == _FULL and call.outputs[0] is not None and call.outputs[0].dtype is torch.bool
