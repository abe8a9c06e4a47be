"""Integer tensors that a loop makes longer with each turn, kept out of its programs.

Text generation appends a token to the tokens so far, and a one to their mask. Whatever program has such a tensor in it
is of one length, so each turn would be compiled anew. The work on them is little: concatenations, slices, comparisons
of some thousand integers. So once a concatenation has been seen to make longer what a concatenation made, torch's CPU
kernels do that work between the programs, as soon as the operands have values, and the programs keep their sizes.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..common import interrupts
from ..compilation import linearization
from ..ir.graph import Call, Handle, Node
from ..platform.xla_devices import Device
from . import concatenations, execute, host_evaluation
from .host_evaluation import HostEvaluation

#: How many kinds of concatenations are remembered to find growth.
_MOST_KINDS = 4096

#: What is appended, and along which dimension → the sizes that came out last; None once they are known to grow.
_kinds: dict[Any, tuple[int, ...] | None] = {}

#: The handles of values that grow, of each device that has any.
_growing: dict[Device, list[weakref.ref[Handle]]] = {}


def look(call: Call) -> bool:
    """Whether a new call of `aten::cat` makes longer, by as much, what such a call has made longer before."""
    if call.name != concatenations.NAME or not host_evaluation.is_small(call) or len(call.inputs) < 2:
        return False
    (first, *rest), dim = concatenations.pieces(call, call.inputs)
    output = call.outputs[0]
    assert output is not None
    if any(len(spec.shape) != len(output.shape) for spec in call.inputs):
        return False  # torch leaves an empty vector out, whatever the others are
    if len(_kinds) >= _MOST_KINDS:
        _kinds.clear()  # a loop that is about to grow is found two turns later
    kind = (call.device, dim, first.dtype, *[(spec.dtype, spec.shape) for spec in rest])
    before = _kinds.setdefault(kind, ())
    if before is not None and before != first.shape:
        _kinds[kind] = output.shape
        return False
    _kinds[kind] = None
    execute.growing = _Growing
    return True


class _Growing:
    """What `execute` calls."""

    @staticmethod
    def set_apart(device: Device, pending: list[Node]) -> tuple[list[Node], list[Node]]:
        """Computes what depends on growing values and can be computed without a program.

        Returns:
            the nodes that a program has to compute, and concatenations that stay pending: their operands are results of
            that program, which does not read them.
        """
        leaves = _living(device)
        is_turn = any(node.call.grows for node in pending)
        if not leaves and not is_turn:
            return pending, []
        needed = set(linearization.needed_nodes(pending))
        leaves.update(id(node.inputs[0]) for node in pending if node.call.grows)
        host = HostEvaluation(device, leaves, is_turn)
        # nodes that nobody needs stay: another thread may be about to
        rest = [node for node in pending if node not in needed or not host.take(node)]
        host.fetch()
        with interrupts.deferred():
            return _worker().submit(_apart, device, host, rest, needed).result()

    @staticmethod
    def finish(device: Device, left: Sequence[Node]) -> None:
        """Computes concatenations that stayed pending, once their operands have values."""
        for node in left:
            if node not in device.pending or any(value.node is not None for value in node.inputs):
                continue  # the program of an operand has failed: whoever reads it is told
            host = HostEvaluation(device, {id(value) for value in node.inputs})
            if host.take(node):
                host.fetch()
                with interrupts.deferred():
                    _worker().submit(_bind, device, host, ()).result()
                    device.pending.remove(node)


@functools.cache
def _worker() -> ThreadPoolExecutor:
    """The thread in which torch's kernels run: modes and transforms of the calling thread have no part in that."""
    return ThreadPoolExecutor(1, "lazy_runtime growing")


def _apart(
    device: Device, host: HostEvaluation, rest: Sequence[Node], needed: set[Node]
) -> tuple[list[Node], list[Node]]:
    computed = _bind(device, host, [node for node in rest if node in needed])
    return concatenations.split(rest, needed, computed, device.pending)


def _living(device: Device) -> set[int]:
    """The identities of the values that grow and that somebody can read."""
    owners = _growing.get(device, [])
    owners[:] = [owner for owner in owners if owner() is not None]
    return {id(handle.value) for owner in owners if (handle := owner()) is not None}


def _bind(device: Device, host: HostEvaluation, readers: Sequence[Node]) -> set[int]:
    """Gives what was computed to the tensors, and to the nodes that read it; the identities of these values."""
    computed, growing = host.bind(readers)
    _growing.setdefault(device, []).extend(growing)
    return computed
