"""Inference: what depends on parameters alone is computed once, and kept while they stay the same.

Two things are gained. Work that does not depend on the input (batch norms folded into convolutions, casts, weights in
the order that the kernels want) is not done again and again; and the executable has fewer arguments, since the small
parameters of a model (most of them: four vectors for each batch norm) come in one buffer.

On xla, that they stayed the same is proven by the identity of their values: a device buffer never changes, and every
write, by whatever way (in place, a fused optimizer, `load_state_dict`, through `.data`), gives the tensor another one.
Of tensors on the CPU nothing cheap proves it, so there the user says that they do (`freezing`).
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from lazy_runtime.compat.torch import OpOverload, disable_current_modes, schema_of
from lazy_runtime.compat.tracing import LazyGraphModule
from lazy_runtime.platform import xla_devices
from lazy_runtime.regions import compiling as regions
from lazy_runtime.tensor.xla_tensor import Unchanged, unwrap

from ..compiled import CompiledGraph
from .epilogue_fusion import finish
from .folding import fold_batch_norms
from .prepacking import arrange

aten = torch.ops.aten
_part = torch.ops.lazy_runtime.part.default
_PACKS = (torch.ops.lazy_runtime.pack_filters.default, torch.ops.lazy_runtime.pack_matrix.default)

#: Parameters of up to so many bytes share a buffer with their like: to slice one off must cost nothing beside its use.
SMALL = 64 << 10

#: As many bytes of a weight in oneDNN's order: nobody slices that, its kernels begin to read where it lies.
SMALL_PACKED = 1 << 20


class Split(NamedTuple):
    """A graph in two parts.

    Attributes:
        once: parameters → list of tensors.
        always: the other arguments, then these tensors → the graph's outputs.
        parameters: numbers of the arguments that `once` takes.
        others: numbers of the arguments that `always` takes.
        examples: fake tensors of what `once` gives.
    """

    once: torch.fx.GraphModule
    always: torch.fx.GraphModule
    parameters: list[int]
    others: list[int]
    examples: list[torch.Tensor]


class HoistedParameters:
    """A callable with AOTAutograd's boxed convention, as `CompiledGraph`."""

    def __init__(self, split: Split, examples: Sequence[Any], visible: int | None, aliases: frozenset[int]):
        self._boxed_call = True
        #: on the CPU, where nobody can tell whether a parameter is the same
        self._frozen = all(examples[number].device.type == "cpu" for number in split.parameters)
        self._number = len(examples)
        self._parameters = split.parameters
        self._others = split.others
        self._once_examples = [examples[number] for number in split.parameters]
        self._always_examples = [*(examples[number] for number in split.others), *split.examples]
        first, end = len(split.others), len(self._always_examples)
        static = frozenset(range(first, end)) if self._frozen else frozenset()
        self._always = CompiledGraph(split.always, self._always_examples, static, visible, aliases)
        self._once = CompiledGraph(split.once, self._once_examples, region=self._always.region.parameters())
        #: tells whether the parameters stayed the same (None: they are frozen), and what `once` gave for them
        self._kept: tuple[Unchanged | None, list[torch.Tensor]] | None = None

    @property
    def is_dynamic(self) -> bool:
        """Some sizes come with the arguments of each call."""
        return self._always.is_dynamic

    def prepare(self, arguments: Sequence[Any] = ()) -> None:
        """Traces and compiles for the examples.

        Args:
            arguments: what the graph is being compiled to be called with, where that is known: what depends on the
                parameters among them is then computed while the rest is compiled, and the first call started while
                Dynamo builds its guards.
        """
        self._once.prepare(self._once_examples)
        known = len(arguments) == self._number and not self._frozen and not regions.is_tracing()
        parameters = [arguments[number] for number in self._parameters] if known else []
        known = known and all(map(_has_value_like, parameters, self._once_examples))
        if known and not self._once.is_loading:
            self._keep_ahead(parameters)
        self._always.prepare(self._always_examples)
        if known:
            kept = self._keep_ahead(parameters)
            others = [arguments[number] for number in self._others]
            if all(map(_has_value_like, others, self._always_examples)):
                self._always.begin(others + kept)

    def _keep_ahead(self, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
        with disable_current_modes():  # Dynamo compiles under its fake mode
            return self._keep(parameters)

    def _keep(self, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
        """What `once` gives for these parameters."""
        kept = self._kept
        if kept is None or not (kept[0] is None or kept[0].of(parameters)):
            unchanged = None if self._frozen else Unchanged(parameters)
            kept = self._kept = unchanged, self._once(list(parameters))  # which empties what it is given
        return kept[1]

    def __call__(self, arguments: list[Any]) -> list[Any]:
        parameters = [arguments[number] for number in self._parameters]
        kept = self._keep(parameters)
        others = [arguments[number] for number in self._others]
        arguments.clear()
        return self._always(others + kept)


def _has_value_like(tensor: Any, example: torch.Tensor) -> bool:
    """Whether it is a tensor on xla like the example, whose value nothing has to be run for."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device.type != "xla":
        return False
    like = (example.shape, example.dtype, example.device)
    return (tensor.shape, tensor.dtype, tensor.device) == like and unwrap(tensor).handle.value.array is not None


def split(gm: torch.fx.GraphModule, static: frozenset[int], freezing: bool = False) -> Split | None:
    """Takes apart what depends on parameters alone; None if nothing is gained.

    Args:
        static: numbers of the placeholders that are parameters or buffers.
        freezing: those on the CPU too.
    """
    graph = copy.deepcopy(gm.graph)
    placeholders = graph.find_nodes(op="placeholder")
    writes = (aten.copy_.default, aten.set_.source_Tensor)
    written = {node.args[0] for target in writes for node in graph.find_nodes(op="call_function", target=target)}
    returned = set(graph.output_node().all_input_nodes)
    on = "cpu" if freezing and "xla" not in map(_device_type, placeholders) else "xla"
    if on == "xla" and xla_devices.is_spmd():  # what is packed cannot lie as its parts do
        return None
    parameters = {
        node
        for number, node in enumerate(placeholders)
        if number in static and node not in written | returned and _device_type(node) == on
    }
    if not parameters:
        return None
    fold_batch_norms(graph, parameters)
    known = set(parameters)
    for node in graph.nodes:
        if _is_computable(node) and known.issuperset(node.all_input_nodes):
            known.add(node)
    arrange(graph, known)
    finish(graph)
    return _Splitter(gm, graph, placeholders, parameters, known).split()


def _device_type(node: torch.fx.Node) -> str | None:
    value = node.meta.get("val")
    return value.device.type if isinstance(value, torch.Tensor) else None


def _is_computable(node: torch.fx.Node) -> bool:
    """Whether a node whose inputs are known is: it is pure, and takes no more memory than what it is made from."""
    if node.op != "call_function" or not node.all_input_nodes:
        return False
    if node.target is operator.getitem:
        return True
    results: Any = node.meta.get("val")
    values: Sequence[Any] = results if isinstance(results, tuple) else (results,)
    if not isinstance(node.target, OpOverload) or not all(isinstance(x, torch.Tensor) for x in values):
        return False
    if torch.Tag.nondeterministic_seeded in node.target.tags or schema_of(node.target).is_mutable:
        return False
    sources = [source.meta.get("val") for source in node.all_input_nodes]
    held = sum(_bytes(source) for source in sources if isinstance(source, torch.Tensor))
    return all(isinstance(size, int) for x in values for size in x.shape) and sum(map(_bytes, values)) <= held


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.dtype.itemsize


def _is_view(node: torch.fx.Node) -> bool:
    """Whether it computes nothing: a transposed weight is no better kept than made anew."""
    if node.target is operator.getitem:
        return _is_view(node.args[0])  # type: ignore[arg-type]
    if not isinstance(node.target, OpOverload):
        return False
    return any(result.alias_info is not None for result in schema_of(node.target).returns)


class _Splitter:
    """Builds the two graphs node by node."""

    def __init__(
        self,
        root: torch.nn.Module,
        graph: torch.fx.Graph,
        placeholders: Sequence[torch.fx.Node],
        parameters: set[torch.fx.Node],
        known: set[torch.fx.Node],
    ):
        self.root = root  # of the graph's constants
        self.graph = graph
        self.placeholders = placeholders
        self.known = known
        self.crossing = self._crossing()
        self.packs = self._packs()
        self.packed = {node for pack in self.packs for node in pack}
        self.computed = [node for node in self.crossing if node not in parameters and node not in self.packed]

    def _crossing(self) -> list[torch.fx.Node]:
        """What the second graph needs of the first, in order; views are made there."""
        found: dict[torch.fx.Node, None] = {}

        def need(node: torch.fx.Node) -> None:
            if node.op != "placeholder" and _is_view(node):
                for source in node.all_input_nodes:
                    need(source)
            else:
                found[node] = None

        for node in self.graph.nodes:
            if node not in self.known:
                for source in node.all_input_nodes:
                    if source in self.known:
                        need(source)
        return list(found)

    def _packs(self) -> list[list[torch.fx.Node]]:
        """Small tensors that share a buffer."""
        packs: dict[Any, list[torch.fx.Node]] = {}
        for node in self.crossing:
            value = node.meta["val"]
            is_ordered = node.target in _PACKS  # these stay aligned among themselves
            if _bytes(value) <= (SMALL_PACKED if is_ordered else SMALL) and value.is_contiguous():
                packs.setdefault((value.dtype, is_ordered), []).append(node)
        return [pack for pack in packs.values() if len(pack) > 1]

    def split(self) -> Split | None:
        if not self.packs and not self.computed:
            return None
        once, taken = self._once()
        always, others = self._always()
        examples = [self._example(pack) for pack in self.packs] + [node.meta["val"] for node in self.computed]
        return Split(_module(self.root, once), _module(self.root, always), taken, others, examples)

    def _example(self, pack: list[torch.fx.Node]) -> torch.Tensor:
        first = pack[0].meta["val"]
        return first.new_empty(sum(node.meta["val"].numel() for node in pack))

    def _once(self) -> tuple[torch.fx.Graph, list[int]]:
        graph = torch.fx.Graph()
        wanted: set[torch.fx.Node] = {*self.computed, *self.packed}
        for node in reversed(self.graph.nodes):
            if node in wanted:
                wanted.update(node.all_input_nodes)
        copies: dict[torch.fx.Node, torch.fx.Node] = {}
        for node in self.graph.nodes:
            if node in wanted:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        outputs = []
        for pack in self.packs:
            flat = [graph.call_function(aten.reshape.default, (copies[node], [-1])) for node in pack]
            outputs.append(graph.call_function(aten.cat.default, (flat,)))
        graph.output(outputs + [copies[node] for node in self.computed])
        return graph, [number for number, node in enumerate(self.placeholders) if node in wanted]

    def _always(self) -> tuple[torch.fx.Graph, list[int]]:
        graph = torch.fx.Graph()
        copies: dict[torch.fx.Node, torch.fx.Node] = {}
        direct = set(self.crossing) - self.packed
        others = [number for number, node in enumerate(self.placeholders) if node not in self.known or node in direct]
        for number in others:
            copies[self.placeholders[number]] = graph.node_copy(self.placeholders[number])
        packs = [graph.placeholder(f"packed_{number}") for number in range(len(self.packs))]
        for number, node in enumerate(self.computed):
            copies[node] = graph.placeholder(f"computed_{number}")
            copies[node].meta = dict(node.meta)
        for buffer, pack in zip(packs, self.packs, strict=True):
            start = 0
            for node in pack:
                value = node.meta["val"]
                copies[node] = graph.call_function(_part, (buffer, start, list(value.shape)))
                start += value.numel()

        def copy_of(node: torch.fx.Node) -> torch.fx.Node:
            if node not in copies:  # a view of what has crossed
                copies[node] = graph.node_copy(node, copy_of)
            return copies[node]

        for node in self.graph.nodes:
            if node not in self.known and node not in copies:
                copies[node] = graph.node_copy(node, copy_of)
        return graph, others


def _module(root: torch.nn.Module, graph: torch.fx.Graph) -> torch.fx.GraphModule:
    # whose Python nobody runs: generating it takes as long as tracing the graph
    return LazyGraphModule(root, graph)
