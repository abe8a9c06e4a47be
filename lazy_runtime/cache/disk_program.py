"""A compiled program as bytes, and what must be there for it to run in another process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax.experimental import serialize_executable

from ..compat.jaxlib import ir, prepare_lapack_call
from ..ir import dtypes
from ..lowering import aten_bridge
from .disk_key import UncacheableError
from .disk_store import Entry

if TYPE_CHECKING:
    from ..ir.graph import Graph


class Loaded(NamedTuple):
    """What is known of a program that came from the disk.

    Attributes:
        compiled: jax's callable.
        physical: numbers of the results that are channels last.
        checks: how many checks it makes.
    """

    compiled: jax.stages.Compiled
    physical: frozenset[int]
    checks: int


def dump(
    lowered: jax.stages.Lowered, compiled: jax.stages.Compiled, physical: Iterable[int], checks: int
) -> tuple[dict[str, Any], bytes]:
    """What an entry's header says of a program, and its payload.

    Raises:
        UncacheableError: the program means nothing to another process, or the platform cannot write it down.
    """
    described = {"physical": sorted(physical), "checks": checks, "custom_calls": custom_calls(lowered)}
    try:
        return described, serialize_executable.serialize(compiled)[0]
    except Exception as error:  # a platform that cannot, Python objects that are part of the program
        raise UncacheableError(f"it cannot be serialized: {error}") from error


def load(entry: Entry, graph: Graph) -> Loaded:
    """The program of an entry. Unpickles: the entry must come from where nobody else can write.

    Raises:
        Exception: what pickle, jax and XLA may say of one that does not load.
    """
    header = entry.header
    _check(header, len(graph.outputs))
    prepare(header["custom_calls"])
    arguments = len(graph.leaves) + (graph.floats > 0) + (graph.ints > 0)
    results = len(graph.outputs) + (header["checks"] > 0)
    with dtypes.x64():
        compiled = serialize_executable.deserialize_and_load(
            entry.payload,
            jax.tree.structure(((0,) * arguments, {})),
            jax.tree.structure([0] * results),
            backend=graph.device.jax_device.client,
            execution_devices=graph.device.jax_devices,
        )
    return Loaded(compiled, frozenset(header["physical"]), header["checks"])


def _check(header: Mapping[str, Any], outputs: int) -> None:
    """Refuses a header that lacks facts of the program.

    Raises:
        ValueError: what the header says of the program is nothing that `dump` writes.
    """
    physical, checks, calls = header.get("physical"), header.get("checks"), header.get("custom_calls")
    is_right = (
        isinstance(physical, list)
        and all(type(number) is int and 0 <= number < outputs for number in physical)
        and type(checks) is int
        and checks >= 0
        and isinstance(calls, list)
        and all(isinstance(call, str) for call in calls)
    )
    if not is_right:
        raise ValueError("its header does not describe a program")


# A program calls what is outside of XLA by name. A later process has it under that name if jax or we register it, at
# import or in `prepare`. Host callbacks are none of these: they are objects of the process that made them.
_KNOWN_TARGETS = ("aten_call", "lapack_", "cusolver_", "cublas_", "cusparse_", "cu_", "mhlo.", "chlo.")
_KNOWN_EXACTLY = frozenset({"Sharding", "TopK", "ApproxTopK", "annotate_device_placement"})


def custom_calls(lowered: jax.stages.Lowered) -> list[str]:
    """The targets of a program's custom calls.

    Raises:
        UncacheableError: one of them is not there, or means something else, in a later process.
    """
    found: set[str] = set()

    def visit(operation: Any) -> Any:
        if operation.name == "stablehlo.custom_call":
            found.add(operation.attributes["call_target_name"].value)
        return ir.WalkResult.ADVANCE

    module: Any = lowered.compiler_ir("stablehlo")
    module.operation.walk(visit)
    for target in found:
        if target not in _KNOWN_EXACTLY and not target.startswith(_KNOWN_TARGETS):
            raise UncacheableError(f"it calls {target}, which belongs to this process")
    return sorted(found)


def prepare(targets: Sequence[str]) -> None:
    """Makes sure that a program finds what it calls: tracing, which does so otherwise, has not taken place.

    Raises:
        RuntimeError: it is not to be had.
    """
    if "aten_call" in targets and not aten_bridge.is_built():
        raise RuntimeError("it calls torch's kernels, and the ATen bridge is not built")
    if any(target.startswith("lapack_") for target in targets):
        prepare_lapack_call("getrf_ffi", np.dtype(np.float32))  # finds scipy's functions, all of them
