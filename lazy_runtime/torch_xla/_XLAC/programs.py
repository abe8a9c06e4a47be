"""Programs by their hash: what `_XLAC` has for those who keep them, as Dynamo's bridge does."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import torch

from ...cache import disk_key
from ...compilation import compiler, linearization
from ...compilation.linearization import Linearized
from ...debug import graphs
from ...execution import execute
from ...ir.graph import Handle, Value
from ...platform import xla_devices
from ...tensor import xla_tensor
from ..core import xla_builder as xb
from . import switches, tensors

__all__ = [
    "_clear_pending_irs",
    "_get_graph_hash",
    "_get_tensors_xla_device_data_node",
    "_get_xla_tensors_hlo_proto",
    "_run_cached_graph",
    "_run_stablehlo",
    "_xla_computation_cache_is_initialized",
    "_xla_get_num_cached_compilation_graph",
    "_xla_sync_live_tensors",
    "_xla_tensors_report",
    "_xla_warm_up_cache",
]


class _Program(NamedTuple):
    """A graph that was numbered for some tensors, and all that running it again takes.

    Attributes:
        places: for each distinct tensor that was not there already, in order, the number of its result.
    """

    numbered: Linearized
    places: list[int]


_programs: dict[bytes, _Program] = {}


def _number(wanted: Sequence[torch.Tensor]) -> _Program:
    inner = [xla_tensor.unwrap(each.detach()) for each in wanted if each.device.type == "xla"]
    if not inner:
        raise ValueError("expected at least one xla tensor")
    device = inner[0].spec.device
    handles = list(dict.fromkeys(each.handle for each in inner if each.handle.value.node is not None))
    with device.lock, switches.donating():
        numbered = linearization.linearize(device, device.pending[:], donate=True, wanted=set(handles))
    return _Program(numbered, [numbered.live.index(handle) for handle in handles])


def _hash(program: _Program) -> bytes:
    graph = program.numbered.graph
    try:
        text = disk_key.program(graph, frozenset())
    except disk_key.UncacheableError:  # it means something in this process alone
        text = str(hash(graph))
    digest = hashlib.sha256(f"{text} {program.places}".encode()).digest()[:16]
    _programs.setdefault(digest, program)
    return digest


def _get_graph_hash(wanted: Sequence[torch.Tensor]) -> bytes:
    """16 bytes that are equal for equal pending programs of tensors, whatever their inputs' values."""
    return _hash(_number(wanted))


def _xla_warm_up_cache(wanted: Sequence[torch.Tensor], devices: Sequence[str] = ()) -> None:
    """Compiles the pending program of tensors without executing it."""
    program = _number(wanted)
    if program.numbered.nodes:
        _hash(program)
        compiler.executable(program.numbered.graph)


def _run_cached_graph(hash_str: bytes, graph_inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Executes the program of a hash with other inputs; random numbers are drawn anew.

    Args:
        hash_str: of `_get_graph_hash`.
        graph_inputs: in the order of `_get_tensors_xla_device_data_node`, of the same sizes and dtypes.

    Returns:
        the results, in the order of the tensors that the hash was asked of; those that were inputs are left out, and
        each occurs once.

    Raises:
        KeyError: no program has this hash.
        ValueError: there are not as many inputs as it has.
    """
    found = _programs.get(hash_str)
    if found is None:
        raise KeyError("_run_cached_graph: no program has this hash; call _get_graph_hash of its results before")
    numbered = found.numbered
    graph = numbered.graph
    if len(graph_inputs) != len(graph.leaves):
        raise ValueError(f"_run_cached_graph: expected {len(graph.leaves)} inputs, got {len(graph_inputs)}")
    device = graph.device
    arrays = []
    for number, each in enumerate(graph_inputs):
        value = xla_tensor.unwrap(each.detach()).handle.value
        arrays.append(execute.array_of(value, device, number in graph.channels_last))
    executable = compiler.executable(graph)
    floats = [number for node in numbered.nodes for number in node.floats]
    ints: list[int] = []
    for node in numbered.nodes:
        own = list(node.ints)
        if node.call.random:
            own[-1] = device.random.draw(1)[0]
        ints += own
    lines = {number: numbered.nodes[number].line for number in executable.located}
    results = executable(arrays, floats, ints, lines)
    specs = graph.output_specs()
    made = []
    for place in found.places:
        value = Value(None, 0, results[place])
        value.channels_last = executable.physical[place]
        made.append(xla_tensor.to_functional(xla_tensor.make(Handle(value), specs[place])))
    return made


def _get_tensors_xla_device_data_node(
    output_tensors: Sequence[torch.Tensor], uncloned_tensors: Sequence[torch.Tensor] = ()
) -> tuple[list[int], list[torch.Tensor]]:
    """The inputs of the pending program of tensors.

    Args:
        uncloned_tensors: given back as they are where they are among the inputs.

    Returns:
        for each input the number of its tensor (`_xla_get_tensor_id`), and a tensor with its value.
    """
    numbered = _number(output_tensors).numbered
    known = {tensors._handle(each): each for each in uncloned_tensors}
    numbers, found = [], []
    for value, spec in zip(numbered.leaves, numbered.graph.leaves, strict=True):
        handle = value.owner() if value.owner is not None else None
        if handle is None:
            handle = Handle(value)  # nobody but the graph has it
        tensor = known[handle] if handle in known else xla_tensor.to_functional(xla_tensor.make(handle, spec))
        numbers.append(tensors.ids[handle] if handle in tensors.ids else tensors._xla_get_tensor_id(tensor))
        found.append(tensor)
    return numbers, found


def _clear_pending_irs(device: str = "") -> None:
    """Forgets what is pending on a device. The tensors that wait for it have no value from now on."""
    found = xla_devices.get(device or None)
    with found.lock:
        for node in found.pending:
            for owner in node.outputs:
                handle = owner() if owner is not None else None
                if handle is not None:
                    handle.value.node = None
        found.pending.clear()


def _xla_sync_live_tensors(device: str = "", devices: Sequence[str] = (), wait: bool = True) -> None:
    """Executes what is pending on a device (the current one if it is empty)."""
    execute.sync(xla_devices.get(device or None), wait)


def _get_xla_tensors_hlo_proto(wanted: Sequence[torch.Tensor]) -> bytes:
    """The pending program of the tensors as a serialized `HloModuleProto`."""
    return graphs.hlo_proto(wanted)


def _xla_tensors_report(nodes_threshold: int = 100, device: str = "") -> str:
    """The tensors of a device that wait for at least so many operators, with these; for people."""
    found = xla_devices.get(device or None)
    rows = []
    with found.lock:
        pending = list(found.pending)
    for node in pending:
        for index, owner in enumerate(node.outputs):
            handle = owner() if owner is not None else None
            if handle is None:
                continue
            numbered = linearization.linearize(found, pending, donate=False, wanted={handle})
            if len(numbered.nodes) >= nodes_threshold:
                spec = node.call.outputs[index]
                rows.append(f"Tensor: {spec}, {len(numbered.nodes)} operators\n{graphs.render(numbered, 'text')}")
    return "\n".join(rows)


def _run_stablehlo(bytecode: bytes, graph_inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The results of a StableHLO module of xla tensors.

    Args:
        bytecode: MLIR bytecode or text; its function is `main`.
    """
    return xb.user_computation("stablehlo", graph_inputs, xb.from_stablehlo("stablehlo", bytecode))


def _xla_get_num_cached_compilation_graph() -> int:
    """See `xr.get_num_cached_compilation_graph`."""
    return compiler.count()


def _xla_computation_cache_is_initialized() -> bool:
    """Whether a program has been compiled, or taken from the disk."""
    return compiler.count() > 0
