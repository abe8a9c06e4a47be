"""What a compiled program is found by on disk: digests that are the same in every process.

A key has two parts. The program is the graph with all that its lowering reads. The environment is everything else that
can change the code: versions, the device, the processor, flags. They are kept apart, so that a miss can say that the
program is there, compiled under something else.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import inspect
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import torch
from jax.sharding import NamedSharding

from ..common import environment, processor
from ..common.version import __version__
from ..compat.jaxlib import CompileOptions
from ..ir import dtypes
from ..ir.grid import names
from ..ir.spec import TensorSpec

if TYPE_CHECKING:
    from ..ir.graph import Call, Graph
    from ..ops.registry import Operator
    from ..platform.xla_devices import Device


class UncacheableError(Exception):
    """The program means something in this process only; the message says what."""


class Key(NamedTuple):
    """What a program is found by.

    Attributes:
        program: hex digest of the graph.
        environment: what else the code depends on, in words where it is short and as a digest where it is not.
    """

    program: str
    environment: Mapping[str, str]

    @property
    def environment_digest(self) -> str:
        return _digest(json.dumps(self.environment, sort_keys=True).encode())


def key(graph: Graph, keep_layout: frozenset[int] | None, options: Mapping[str, Any]) -> Key:
    """The key of a graph that is compiled for these layouts and with these options of XLA's.

    Raises:
        UncacheableError: an operator or an argument of it cannot be told from another one by a later process.
    """
    return Key(program(graph, keep_layout), surroundings(graph.device, options))


def program(graph: Graph, keep_layout: frozenset[int] | None) -> str:
    """Hex digest of what the graph computes and of how its buffers lie."""
    hashed = hashlib.sha256()
    for call in graph.calls:
        if call.digest is None:
            call.digest = _call(call)
        hashed.update(call.digest)
    layout = None if keep_layout is None else tuple(sorted(keep_layout))
    rest = graph.operands, graph.outputs, graph.leaves, graph.donated, graph.channels_last, graph.options, graph.shared
    rest += (layout,)
    if graph.device.grid is not None:
        rest += graph.placements, graph.results
    hashed.update(_encode(rest).encode())
    return hashed.hexdigest()


def _call(call: Call) -> bytes:
    if call.nested is not None:
        return f"graph {program(call.nested.graph, None)}".encode()
    if call.meaning is None:
        raise UncacheableError(f"{call.name} was not recorded from an operator")
    operator, arguments = call.meaning
    text = _encode((_origin(operator), arguments, call.inputs, call.outputs, _flags(call)))
    return hashlib.sha256(text.encode()).digest()


def _flags(call: Call) -> tuple[Any, ...]:
    default = () if call.default_dtype in (None, torch.float32) else (str(call.default_dtype),)
    return call.floats, call.ints, call.random, call.fallible, *default


def described(call: Call) -> str:
    """What a call does, as far as it can be said."""
    inside = "" if call.nested is None else "; ".join(map(described, call.nested.graph.calls))
    arguments: Any = None if call.meaning is None else call.meaning[1]
    try:
        text = _encode(arguments)
    except UncacheableError:
        text = str(arguments)
    return f"{text} {_encode((call.inputs, call.outputs, _flags(call)))} {inside}"


def _origin(operator: Operator) -> str:
    """Which lowering it is. Ours are known by where they stand, since the sources are part of the environment."""
    function = inspect.unwrap(operator.lowering)
    module = getattr(function, "__module__", None) or ""
    if module.split(".")[0] not in ("lazy_runtime", "jax"):
        raise UncacheableError(f"the lowering of {operator.name} is defined in {module or type(function).__name__}")
    code = getattr(function, "__code__", None)
    line = code.co_firstlineno if code is not None else 0
    return f"{operator.name} {module}.{getattr(function, '__qualname__', type(function).__name__)}:{line}"


def _encode(x: Any) -> str:
    """Text that is equal for equal values of equal types only."""
    kind = type(x)
    if kind is str:
        return f"s{len(x)}:{x}"
    if kind is int:
        return f"i{x}"
    if kind is tuple or kind is list:
        return f"({','.join(map(_encode, x))})"
    if x is None or kind is bool:
        return str(x)
    if kind is TensorSpec:
        return f"T{x.dtype}{x.shape}{x.stride}{x.offset}@{_place(x.device)}"
    if kind is float:
        return f"f{x.hex()}"
    if kind is complex:
        return f"c{x.real.hex()}{x.imag.hex()}"
    if kind in _NAMED:
        return f"{kind.__name__}:{x}"
    if kind is type:
        return f"t{x.__name__}"
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name == "lazy_runtime.platform.xla_devices.Device":
        return _place(x)
    if isinstance(x, NamedSharding):
        devices: Any = x.mesh.devices
        return f"S{devices.shape}{[each.id for each in devices.flat]}{_encode([names(entry) for entry in x.spec])}"
    if name == "lazy_runtime.recording.dispatch._Dynamic":  # stands for a number that is an input of the graph
        return f"?{x.kind}"
    raise UncacheableError(f"an argument of type {name} has no meaning for a later process")


_NAMED = frozenset({torch.dtype, torch.device, torch.layout, torch.memory_format})


def _place(device: Device) -> str:
    # xla devices may store fewer bits than torch says, plain tensors on the same device of jax's do not
    where = ",".join(str(each.id) for each in device.jax_devices)
    stored = "".join(f" {dtype} as {narrow}" for dtype, narrow in dtypes.narrowed().items()) if device.narrows else ""
    return f"{device.platform}:{where}{' narrowed' if device.narrows else ''}{stored}"


def surroundings(device: Device, options: Mapping[str, Any]) -> dict[str, str]:
    """What the code depends on beside the program.

    Args:
        options: what every program of the platform is given on top of XLA's own flags.
    """
    flags = CompileOptions()
    _ = flags.executable_build_options.debug_options  # XLA_FLAGS as XLA has read them
    return {
        **_fixed(device),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        "flags of XLA": _digest(flags.SerializeAsString()),
        "options of XLA": json.dumps(dict(options), sort_keys=True, default=str),
        "flags of jax": _jax_flags(),
        "default dtype": str(torch.get_default_dtype()),  # takes part in type promotion, and so in lowerings
    }


@functools.cache
def _fixed(device: Device) -> dict[str, str]:
    jax_device = device.jax_device
    client = jax_device.client
    return {
        "lazy_runtime": f"{__version__} ({_sources()[:12]})",
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "torch": f"{torch.__version__} ({torch.version.git_version})",
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "platform": f"{client.platform} {client.platform_version}",
        "device": f"{jax_device.device_kind}, {client.device_count()} of them, {jax.process_count()} processes",
        "processor": processor.description(),
        "variables": json.dumps(_variables(), sort_keys=True),
        **({"kernels": _choice_of_kernels()} if client.platform == "cpu" else {}),
    }


def _choice_of_kernels() -> str:
    """What decides which kernels a lowering for the CPU calls, beside the processor and the operands."""
    names = (name for name in os.environ if name.startswith(_CHOOSES_KERNELS) and not name.endswith(_CHOOSES_NOTHING))
    variables = {name: os.environ[name] for name in names}
    return f"{torch.backends.cpu.get_cpu_capability()} {json.dumps(variables, sort_keys=True)}"


def kernels() -> dict[str, str]:
    """What the choices of torch's kernels for the CPU depend on beside their operands."""
    return {
        "torch": f"{torch.__version__} ({torch.version.git_version})",
        "processor": processor.description(),
        "threads": str(torch.get_num_threads()),
        "variables": json.dumps({k: v for k, v in os.environ.items() if k.startswith(_KERNELS)}, sort_keys=True),
    }


_CHOOSES_KERNELS = ("ONEDNN_", "DNNL_", "MKL_", "ATEN_", "TORCH_MKLDNN_")
_CHOOSES_NOTHING = ("_NUM_THREADS", "_DYNAMIC", "_VERBOSE")
_KERNELS = (*_CHOOSES_KERNELS, "OMP_", "KMP_", "GOMP_")


@functools.cache
def _sources() -> str:
    """Digest of this package's files: a checkout changes without its version, and lowerings are code. 3 ms."""
    here = Path(__file__).parents[1]
    hashed = hashlib.sha256()
    for path in sorted((*here.rglob("*.py"), *here.glob("native/bridge*"))):
        content = path.read_bytes()
        hashed.update(f"{path.relative_to(here)} {len(content)} ".encode())
        hashed.update(content)
    return hashed.hexdigest()


#: Flags of jax that say where things are kept, shown or logged. All others count, known to matter or not.
_NO_CODE = re.compile(
    r"jax_(compilation_cache|persistent_cache|raise_persistent|share_binary|log|logging|explain|debug_log"
    r"|debug_leaked|compiler_detailed|traceback|tracer_error|transfer_guard|check_tracer|pprint|dump_ir"
    r"|include_debug_info|cross_host|cpu_get|distributed_debug|platforms$|platform_name$|num_cpu_devices$"
    r"|enable_x64$)"  # the last is always on where we compile
)


def _jax_flags() -> str:
    # the attributes know of what is set for this thread; some flags have none
    config: Any = jax.config
    known = config.values
    values = {name: repr(getattr(config, name, known[name])) for name in _names(tuple(known))}
    return _digest(json.dumps(values, sort_keys=True).encode())


@functools.cache
def _names(known: tuple[str, ...]) -> list[str]:
    return [name for name in known if not _NO_CODE.match(name)]


def _variables() -> dict[str, str]:
    """What others than XLA and jax read: the libraries that XLA calls, and this package."""
    others = {name: value for name, value in os.environ.items() if name.startswith(_OTHERS)}
    return {**others, **{name: repr(value) for name, value in environment.code_key()}}


_OTHERS = ("LIBTPU_INIT_ARGS", "NVIDIA_TF32", "CUBLAS_", "CUDNN_")


def difference(mine: Mapping[str, str], other: Mapping[str, str]) -> str:
    """In which parts two environments differ, for people."""
    parts = []
    names = {*mine, *other}
    if mine.get("XLA_FLAGS") != other.get("XLA_FLAGS"):
        names.discard("flags of XLA")  # they differ because of that, then
    for name in sorted(names):
        here, there = mine.get(name, "nothing"), other.get(name, "nothing")
        if here != there:
            long = len(here) > 60 or len(there) > 60
            parts.append(f"{name} differs" if long else f"{name} was {there or 'empty'}, is {here or 'empty'}")
    return "; ".join(parts)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
