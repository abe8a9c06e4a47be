"""What was compiled, for which line of the user's program, why again, and what it will cost.

`ready` is told of every program that is about to run for the first time.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..common import metrics, output, source_locations
from ..common.source_locations import Line
from . import growing_loops, kernel_choices, reports
from .formats import bytes_text, counted, duration, quantity
from .recompile_reasons import Recompilation, Seen, explain, nearest

if TYPE_CHECKING:
    import jax

    from ..compilation.compiler import Executable
    from ..ir.graph import Node, Value

#: How many graphs of a region are looked at for the nearest one.
_GRAPHS = 32

_lock = threading.Lock()


class Origin(NamedTuple):
    """Where a program comes from.

    Attributes:
        backend: "lazy", "eager" or "openxla".
        region: what its compiles are counted under.
        name: the region's, for people: `train.py:41`.
        lines: for each of its calls, the user's line, where it is known.
        leaf_lines: for each of its leaves, the user's line that made it, where it is known.
    """

    backend: str
    region: Hashable
    name: str
    lines: Sequence[Line | None]
    leaf_lines: Sequence[Line | None]


def of_pending(backend: str, nodes: Sequence[Node], leaves: Sequence[Value]) -> Origin:
    """The origin of a program made of recorded nodes: the line that executes it now."""
    line = source_locations.here()
    # in eager mode a line executes a program for each of its operators
    region = (line, nodes[0].call.name) if backend == "eager" else line
    name = str(line) if line is not None else "a thread without a line of yours"
    recorded = [source_locations.parse(getattr(node, "line", "")) for node in nodes]
    return Origin(backend, region, name, recorded, [getattr(value, "line", None) for value in leaves])


class Cost(NamedTuple):
    """What XLA's analysis says of a program. Kernels that it calls (convolutions of torch's on the CPU) count nothing.

    Attributes:
        flops: additions, multiplications and their like of one execution.
        transcendentals: exponentials, logarithms and their like, which are not among the flops.
        bytes_accessed: bytes that its operations read and write, counted for each operation.
        arguments, outputs, aliased, temporaries: bytes of the device's memory: of the inputs, the results, the part of
            them that takes the inputs' place, and what is needed meanwhile.
        code: bytes of the program itself.
    """

    flops: float
    transcendentals: float
    bytes_accessed: float
    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    code: int

    @property
    def peak(self) -> int:
        """Bytes of device memory that an execution takes, its arguments and results included."""
        return self.arguments + self.outputs - self.aliased + self.temporaries


class Compilation:
    """One compile.

    Attributes:
        region: the line that executes the program, or the function that was given to torch.compile.
        number: it is the region's compile of this number, from 1.
        backend: "lazy", "eager" or "openxla".
        seconds: what it took; 0 where the program came from the cache on disk.
        when: seconds since the epoch.
        operators, inputs, outputs, donated: how many the graph has; of the inputs, how many are reused for outputs.
        kernels: which kernels its operators took, and why not those before; empty where the program came from there.
        cost: XLA's analysis; None where the platform gives none. It is made when it is first asked for.
    """

    def __init__(self, origin: Origin, number: int, executable: Executable):
        graph = executable.graph
        self.region = origin.name
        self.number = number
        self.backend = origin.backend
        self.seconds = executable.compile_ns / 1e9
        self.when = time.time()
        self.operators = sum(call.operators for call in graph.calls)
        self.inputs = len(graph.leaves)
        self.outputs = len(graph.outputs)
        self.donated = len(graph.donated)
        self.kernels = kernel_choices.of_program(executable.choices, graph, origin.name, origin.lines)
        self._executable = weakref.ref(executable)
        self._cost: Cost | None = None
        self._analysed = False

    @property
    def cost(self) -> Cost | None:
        executable = self._executable()
        if not self._analysed and executable is not None:
            self._cost = _analyse(executable.compiled)
            self._analysed = True
        return self._cost

    def __repr__(self) -> str:
        text = (
            f"compile #{self.number} of {self.region} ({duration(self.seconds)}): {counted(self.operators, 'operator')}"
        )
        if self.cost is None:
            return text
        return (
            f"{text}, {quantity(self.cost.flops)}flop, {bytes_text(self.cost.bytes_accessed)} accessed, "
            f"{bytes_text(self.cost.peak)} of device memory"
        )


def _analyse(compiled: jax.stages.Compiled) -> Cost | None:
    try:
        counted, memory = compiled.cost_analysis(), compiled.memory_analysis()
    except Exception:  # a platform, or a program from the disk, that cannot say
        return None
    if not counted or memory is None:
        return None
    return Cost(
        max(counted.get("flops", 0.0), 0.0),
        max(counted.get("transcendentals", 0.0), 0.0),
        max(counted.get("bytes accessed", 0.0), 0.0),
        memory.argument_size_in_bytes,
        memory.output_size_in_bytes,
        memory.alias_size_in_bytes,
        memory.temp_size_in_bytes,
        memory.generated_code_size_in_bytes,
    )


#: How many compiles are remembered.
_REMEMBERED = 4096

_compilations: deque[Compilation] = deque(maxlen=_REMEMBERED)
_recompiles: deque[Recompilation] = deque(maxlen=_REMEMBERED)
_regions: dict[Hashable, deque[Seen]] = {}
_counts: dict[Hashable, int] = {}
_unmeasured: deque[Compilation] = deque(maxlen=_REMEMBERED)  # those whose cost is not in the metrics yet


def ready(executable: Executable, origin: Origin) -> None:
    """Takes note of a program that is about to run for the first time, and reports it."""
    executable.is_new = False
    new = Seen(executable.graph, origin.lines, origin.leaf_lines)
    key = origin.backend, origin.region
    with _lock:
        known = _regions.setdefault(key, deque(maxlen=_GRAPHS))
        number = _counts[key] = _counts.get(key, 0) + 1
        before = list(known)
        known.append(new)
    compilation = Compilation(origin, number, executable)
    _compilations.append(compilation)
    _unmeasured.append(compilation)
    if executable.compile_ns and output.level() >= 1:
        reports.compilation(compilation, executable)
    if not before or not executable.compile_ns:  # the first, or one that the disk had
        return
    found = explain(nearest(new.graph, before), new)
    again = Recompilation(origin.name, number, compilation.seconds, *found, origin.backend)
    _recompiles.append(again)
    metrics.count(f"Recompile::{again.cause}")
    output.say("xla_recompiles", str(again))
    growing_loops.look(origin.name, before, new)


def compilations() -> list[Compilation]:
    """See `debug.compilations`."""
    return list(_compilations)


def recompiles() -> list[Recompilation]:
    """See `debug.recompiles`."""
    return list(_recompiles)


def clear() -> None:
    """Forgets what was compiled: the next compile of each region counts as its first."""
    with _lock:
        for kept in (_compilations, _recompiles, _unmeasured, _regions, _counts):
            kept.clear()


def _measure() -> None:
    """Brings the costs of new programs into the metrics, when somebody looks: an analysis takes milliseconds."""
    while _unmeasured:
        found = _unmeasured.popleft()
        cost = found.cost
        if cost is not None:
            metrics.record("CompiledFlops", cost.flops, metrics.Unit.VALUE, found.when)
            metrics.record("CompiledBytesAccessed", cost.bytes_accessed, metrics.Unit.BYTES, found.when)
            metrics.record("CompiledPeakMemory", cost.peak, metrics.Unit.BYTES, found.when)


metrics.before_reading.append(_measure)
