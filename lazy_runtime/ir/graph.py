"""The graph that both producers (the lazy device and `openxla_backend`) build and `lower.py` consumes.

A `Call` is one aten operator with its static arguments, on inputs of given specs; calls are interned, so a call's
identity stands for its meaning and a graph is hashed without looking inside. A `Node` is one occurrence of a call. A
`Value` is an output of a node or, once executed or transferred, a device buffer. A `Graph` is a finished, numbered
program without any live objects in it.

Who keeps what alive decides what is computed and what is donated: tensors hold a `Handle`, nodes hold the `Value`
behind it. A value whose handle is gone is needed by nobody outside the graph: it is not an output, and if it is a
buffer, XLA may reuse its memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from . import lifetimes

if TYPE_CHECKING:
    import jax
    import torch

    from ..common.source_locations import Line
    from ..ops.registry import Operator
    from ..platform.xla_devices import Device
    from .spec import TensorSpec


class Placeholder(NamedTuple):
    """Stands in a call's argument template for what the graph passes in: a tensor, or a number that is an input of the
    graph because it changes from step to step.
    """

    kind: str  # "tensor", "float" or "int"
    number: int


def filled(template: Any, arrays: Sequence[Any], floats: Sequence[Any], ints: Sequence[Any]) -> Any:
    """What a template stands for: its placeholders, in lists too, give way to what the graph passes in."""
    if isinstance(template, Placeholder):
        return (arrays if template.kind == "tensor" else floats if template.kind == "float" else ints)[template.number]
    if isinstance(template, list):
        return [filled(item, arrays, floats, ints) for item in template]
    return template


#: What a call's operator is called with, from its tensors and the numbers that are inputs of the graph.
Arguments: TypeAlias = "Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], tuple[list[Any], dict[str, Any]]]"


class Call:
    """One operator application up to its data: operator, static arguments, input and output specs.

    Attributes:
        device: the device it runs on.
        name: the operator, for people (`aten::add.Tensor`).
        evaluate: maps (arrays, floats, ints) to the list of output arrays, inside a jax trace.
        inputs: specs of the tensor inputs.
        outputs: specs of the outputs; None where the operator returns an undefined tensor.
        container: makes what the operator returns from the list of its results; None for a bare tensor.
        floats, ints: how many scalars the call reads from the graph's inputs.
        random: the last of the ints is a 64-bit random seed.
        fallible: it may fail when it runs (`checks.py`).
        collective: it works with the same call of other ranks (`processes/process_job.py`).
        located: it is one of these, so its nodes keep the user's line.
        meaning: the operator and the key of its static arguments, which `evaluate` was made from; None if there are
            none.
        default_dtype: torch's when the call was recorded, which takes part in promotion; None in what was not recorded.
        digest: of the call, once it was asked for (`disk_key.py`).
        nested: the graph that it is (`lower.nested_call`); None for an operator.
        view: eager mode leaves it to its readers (`deferred_views.py`).
        arguments: maps (tensors, floats, ints) to what the operator is called with; None if it is none of torch's.
        grows: it makes an integer tensor longer that a loop has made longer before (`execution/growing.py`).
    """

    __slots__ = (
        "__weakref__",
        "arguments",
        "collective",
        "container",
        "default_dtype",
        "device",
        "digest",
        "evaluate",
        "fallible",
        "floats",
        "grows",
        "inputs",
        "ints",
        "located",
        "meaning",
        "name",
        "nested",
        "outputs",
        "random",
        "view",
    )

    def __init__(
        self,
        name: str,
        device: Device,
        evaluate: Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], Sequence[Any]],
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec | None, ...],
        container: Callable[[list[Any]], Any] | None = None,
        floats: int = 0,
        ints: int = 0,
        random: bool = False,
        fallible: bool = False,
        collective: bool = False,
    ):
        self.name = name
        self.device = device
        self.evaluate = evaluate
        self.inputs = inputs
        self.outputs = outputs
        self.container = container
        self.floats = floats
        self.ints = ints
        self.random = random
        self.fallible = fallible
        self.collective = collective
        self.located = fallible or collective
        self.meaning: tuple[Operator, tuple[Any, ...]] | None = None
        self.default_dtype: torch.dtype | None = None
        self.digest: bytes | None = None
        self.nested: Nested | None = None
        self.view = False
        self.arguments: Arguments | None = None
        self.grows = False

    @property
    def operators(self) -> int:
        """How many operators it stands for."""
        return 1 if self.nested is None else len(self.nested.graph.calls)

    @property
    def is_ours(self) -> bool:
        """Whether it is an operator of torch's or of this package's; a user's own may do anything."""
        return self.name.startswith(("aten::", "lazy_runtime::"))

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(map(repr, self.inputs))}) -> {', '.join(map(repr, self.outputs))}"


class Value:
    """An output of a pending node (`node`, `index`) or a device buffer (`array`).

    A buffer with `channels_last` holds dimension 1 last (`layout.py`); its array has that shape.
    """

    __slots__ = ("array", "channels_last", "index", "line", "node", "owner", "pinned")

    #: The user's line that made it, set where it was copied to the device, and where `source_locations.keep`.
    line: Line | None

    def __init__(self, node: Node | None, index: int, array: jax.Array | None = None):
        self.node = node
        self.index = index
        self.array = array
        self.channels_last = False
        self.owner: weakref.ref[Handle] | None = None
        self.pinned = False  # somebody outside (a DLPack consumer) sees the buffer: never donate it


class Handle:
    """What tensors hold; as long as it lives, somebody can still ask for the value."""

    __slots__ = ("__weakref__", "value")

    def __init__(self, value: Value):
        self.value = value
        value.owner = weakref.ref(self, lifetimes.died)
        lifetimes.born()


class Node:
    """One occurrence of a call in a pending graph.

    Attributes:
        outputs: weak references to the handles of its results.
        line: the user's that recorded it, set where the call is `located`, in traces, and where
            `source_locations.keep`.
        stack: all of the user's frames, set where `source_locations.keep_stacks`.
        scope: the part of the program, set where `stack` is.
        thread: the recording one's, set where several threads record (`recorders.py`).
    """

    __slots__ = ("call", "floats", "inputs", "ints", "line", "outputs", "scope", "stack", "thread")

    line: str
    scope: str
    stack: list[Line]
    thread: int

    def __init__(self, call: Call, inputs: Sequence[Value], floats: Sequence[float], ints: Sequence[int]):
        self.call = call
        self.inputs = inputs
        self.floats = floats
        self.ints = ints
        self.outputs: Sequence[weakref.ref[Handle] | None] = ()

    def held(self) -> list[Handle]:
        """The handles of those of its results that somebody holds."""
        found = [owner() for owner in self.outputs if owner is not None]
        return [handle for handle in found if handle is not None]


class Graph(NamedTuple):
    """A program over numbered slots: leaf n is slot `-1 - n`, the outputs of the calls take 0, 1, 2, ... in order.

    A graph is its own cache key: calls compare by identity, all else by value.
    """

    device: Device
    calls: tuple[Call, ...]
    operands: tuple[int, ...]  # the input slots of all calls, one after the other
    outputs: tuple[int, ...]
    leaves: tuple[TensorSpec, ...]
    donated: tuple[int, ...]  # leaf numbers
    channels_last: tuple[int, ...] = ()  # numbers of the leaves whose buffers hold dimension 1 last
    options: tuple[tuple[str, Any], ...] = ()  # of the XLA compiler, for this program alone
    placements: tuple[Any, ...] | None = None  # how the leaves lie on the device's grid (`sharding.py`), if it has one
    results: tuple[Any, ...] | None = None  # and how the outputs are to; None for as XLA likes
    shared: tuple[int, ...] = ()  # which of the program's floats each of the calls' is; empty if they are the same

    @property
    def floats(self) -> int:
        return 1 + max(self.shared) if self.shared else sum(call.floats for call in self.calls)

    @property
    def ints(self) -> int:
        return sum(call.ints for call in self.calls)

    @property
    def is_collective(self) -> bool:
        """Whether the ranks of a job run it together."""
        return any(call.collective for call in self.calls)

    def all_calls(self) -> Iterator[Call]:
        """Its calls, and those of the graphs that some of them are."""
        for call in self.calls:
            yield call
            if call.nested is not None:
                yield from call.nested.graph.all_calls()

    def output_specs(self) -> list[TensorSpec]:
        """The specs of the outputs, in order."""
        slots = [spec for call in self.calls for spec in call.outputs]
        specs = [slots[slot] if slot >= 0 else self.leaves[-1 - slot] for slot in self.outputs]
        return [spec for spec in specs if spec is not None]

    def __str__(self) -> str:
        """One line per call, for people."""
        lines = [f"%{-1 - n}: {spec}" for n, spec in enumerate(self.leaves)]
        operands = iter(self.operands)
        slot = 0
        for call in self.calls:
            results = ", ".join(f"%{slot + i}" for i in range(len(call.outputs)))
            slot += len(call.outputs)
            inputs = ", ".join(f"%{next(operands)}" for _ in call.inputs)
            lines.append(f"{results} = {call.name}({inputs}) : {', '.join(map(str, call.outputs))}")
        lines.append(f"return {', '.join(f'%{slot}' for slot in self.outputs)}")
        return "\n".join(lines)


class Nested(NamedTuple):
    """What a call does that is a whole graph.

    Attributes:
        graph: in it, no call is a graph itself.
        lines: call number → the user's line, for what is fallible.
        alone: the graphs that it has been the only call of, by what they depend on (`linearization.py`).
    """

    graph: Graph
    lines: Mapping[int, str]
    alone: dict[tuple[Any, ...], Graph]
