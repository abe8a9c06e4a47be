"""A Python function of xla tensors as a graph of its own, which a lowering can evaluate as often as it likes."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ..cache import disk_key
from ..compat.torch import is_multithreading_enabled, set_multithreading_enabled
from ..compilation import linearization, lower
from ..ir.graph import Handle, Node, Value
from ..ir.spec import TensorSpec
from ..lowering import checks
from ..lowering.layout import logical
from ..platform.xla_devices import Device
from ..recording import dispatch
from ..tensor.xla_tensor import XLATensor, make, to_functional, unwrap
from .checked import CheckedGraph
from .outside_tensors import OutsideTensors


class TracedFunction(CheckedGraph):
    """What a function does with tensors of given specs.

    Attributes:
        name: what errors call it.
        graph: its operators.
        arguments: the specs that it was traced with.
        captured: the tensors that it reads beside its arguments.
        specs: what its results look like, row-major.
        operands: what it reads or gives through: numbers of arguments, or of captured tensors, counted after those.
        operand_specs: what these look like.
        key: equal for functions that do the same, up to the captured tensors.
    """

    def __init__(
        self,
        function: Callable[..., Sequence[torch.Tensor]],
        arguments: Sequence[TensorSpec],
        device: Device,
        name: str,
    ):
        self.name = name
        self.arguments = tuple(arguments)
        trace = dispatch.Trace(device)
        stand_ins = [make(Handle(Value(None, 0)), spec) for spec in arguments]
        with OutsideTensors(trace) as outside_tensors:
            results = self._run(function, stand_ins, trace, outside_tensors)
            handles = {result.handle for result in results if result.handle.value.node is not None}
            self._refuse_kept(trace.nodes, handles)
            if outside_tensors.written():
                raise self._kept("aten::copy_")
        outside = _cut(trace.nodes)
        numbered = linearization.linearize(device, trace.nodes, donate=False, wanted=handles)
        super().__init__(numbered.graph)
        if self.graph.is_collective:
            raise NotImplementedError(f"{name} communicates with other ranks: do that outside of it")
        places: dict[int, int] = {id(each.handle.value): number for number, each in enumerate(stand_ins)}
        self.captured: list[XLATensor] = []
        leaves = []
        for value, spec in zip(numbered.leaves, numbered.graph.leaves, strict=True):
            if id(value) not in places:
                places[id(value)] = len(arguments) + len(self.captured)
                self.captured.append(make(_handle(outside.get(id(value), value)), spec))
            leaves.append(places[id(value)])
        numbers = {id(handle): number for number, handle in enumerate(numbered.live)}
        given: list[tuple[str, int]] = []
        for result in results:
            if id(result.handle) in numbers:
                given.append(("result", numbers[id(result.handle)]))
                continue
            value = result.handle.value
            if id(value) not in places:
                places[id(value)] = len(arguments) + len(self.captured)
                self.captured.append(result)
            given.append(("operand", places[id(value)]))
        self._leaves, self._given = tuple(leaves), tuple(given)
        self.operands = tuple(dict.fromkeys([*leaves, *(place for kind, place in given if kind == "operand")]))
        known = [*self.arguments, *(each.spec for each in self.captured)]
        self.operand_specs = [known[place] for place in self.operands]
        self.specs = [TensorSpec.of(each.spec.device, each.spec.dtype, each.spec.shape) for each in results]
        self.key = self.graph, self._leaves, self._given, self.arguments, tuple(each.spec for each in self.captured)

    def _run(
        self,
        function: Callable[..., Sequence[torch.Tensor]],
        stand_ins: list[XLATensor],
        trace: dispatch.Trace,
        outside_tensors: OutsideTensors,
    ) -> list[XLATensor]:
        seen = [to_functional(each) for each in stand_ins]
        with _backward_in_caller(), trace, outside_tensors.noted():
            try:
                results = [self._result(each) for each in function(*seen)]
            except RuntimeError as error:
                if _NO_VALUE not in str(error):
                    raise
                raise RuntimeError(
                    f"{self.name} reads the value of a tensor (`.item()`, `if x:`, an index of one element), where "
                    "there is none: it is traced once. Use torch.where, torch.cond, or an index of one dimension"
                ) from error
            for number, (user, inner) in enumerate(zip(seen, stand_ins, strict=True)):
                if unwrap(user) is not inner:
                    raise RuntimeError(
                        f"an in-place operation of {self.name} writes to its argument {number}: have it return the new "
                        "value"
                    )
        return results

    def _result(self, found: Any) -> XLATensor:
        if not isinstance(found, torch.Tensor):
            raise TypeError(f"{self.name} returns {found!r}, where tensors are taken")
        return unwrap(found.detach())

    def _refuse_kept(self, nodes: Sequence[Node], handles: set[Handle]) -> None:
        if _held(nodes, handles) is not None:
            gc.collect()  # what the function has left behind may be in a circle that nobody holds
            held = _held(nodes, handles)
            if held is not None:
                raise self._kept(held.call.name)

    def _kept(self, operator: str) -> RuntimeError:
        return RuntimeError(
            f"{self.name} writes to a tensor from outside of it, or keeps one that it made ({operator}): it is traced "
            "once and has no such value. Return what is needed after it"
        )

    def __call__(self, arguments: Sequence[Any], captured: Sequence[Any], ints: Sequence[Any] = ()) -> tuple[Any, Any]:
        """Its results and its flag (`checks.Collector.flag`), within a trace of jax's.

        Args:
            arguments: arrays, one for each spec.
            captured: arrays of `self.captured`.
            ints: `graph.ints` seeds.
        """
        operands = [*arguments, *captured]
        found, flag = self.evaluated([operands[place] for place in self._leaves], ints)
        return logical(self._gathered(found, operands)), flag

    def evaluate(self, operands: Sequence[Any]) -> Any:
        """Its results within a trace of jax's, of arrays of its operands; unchecked.

        Raises:
            NotImplementedError: it draws random numbers, which would be the same each time.
        """
        if self.graph.ints:
            raise NotImplementedError(f"{self.name} draws random numbers: pass them as an argument")
        by_place = dict(zip(self.operands, operands, strict=True))
        with checks.collecting():
            found = lower.evaluate(self.graph, [by_place[place] for place in self._leaves], (), ())
        return logical(self._gathered(found, by_place))

    def _gathered(self, found: Sequence[Any], operands: Any) -> list[Any]:
        return [found[number] if kind == "result" else operands[number] for kind, number in self._given]

    @property
    def is_fallible(self) -> bool:
        """Whether an operator of it may fail when it runs."""
        return any(call.fallible for call in self.graph.all_calls())

    def digest(self) -> str:
        """What it is found by on disk.

        Raises:
            UncacheableError: it cannot be told from others.
        """
        return repr((disk_key.program(self.graph, None), *map(str, self.key[1:])))


#: What a read of a stand-in says (`execution/execute.py`).
_NO_VALUE = "has no value: the program that was to compute it"


def _held(nodes: Sequence[Node], handles: set[Handle]) -> Node | None:
    """One of the nodes of which somebody holds a result that is none of these."""
    return next((node for node in nodes if not handles.issuperset(node.held())), None)


def _cut(nodes: Sequence[Node]) -> dict[int, Value]:
    """Makes leaves of what the nodes read of others, which stay where they are.

    Returns:
        by the id of each such leaf, what it stands for.
    """
    own = set(nodes)
    leaves: dict[int, Value] = {}
    outside: dict[int, Value] = {}
    for node in nodes:
        if any(value.node is not None and value.node not in own for value in node.inputs):
            node.inputs = list(node.inputs)
            for place, value in enumerate(node.inputs):
                if value.node is not None and value.node not in own:
                    leaf = leaves.setdefault(id(value), Value(None, 0))
                    outside[id(leaf)] = value
                    node.inputs[place] = leaf
    return outside


def _handle(value: Value) -> Handle:
    """The handle that the value has: a second one would take its place."""
    found = value.owner() if value.owner is not None else None
    return Handle(value) if found is None else found


@contextlib.contextmanager
def _backward_in_caller() -> Iterator[None]:
    """Has backward passes run in the calling thread, which is the one that traces."""
    outer = is_multithreading_enabled()
    set_multithreading_enabled(False)
    try:
        yield
    finally:
        set_multithreading_enabled(outer)
