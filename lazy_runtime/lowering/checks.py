"""What can go wrong only when a program runs: an index out of range, a singular matrix, an error of a called kernel.

A lowering says what must hold with `require`; the program then gives, beside its results, the number of the first
check that failed. Nobody waits for that: it is looked at when a value is read, when `sync` waits, and at the next
`sync` after the execution has finished. The exception has the type and message that torch's CPU kernel raises, and
names the operator and the user's line.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import torch

from ..common import metrics
from ..ir import lowering_context
from .argmax import argmax

if TYPE_CHECKING:
    from ..ir.graph import Graph


#: A call may be a whole graph (`Call.nested`). Call m of the graph that is call n of a program has the number
#: n + ((m + 1) << NESTED) in checks and errors.
NESTED = 20


class Check(NamedTuple):
    """Something that a program checks.

    Attributes:
        call: number of the call that it belongs to.
        error: makes the exception from the value that was checked.
    """

    call: int
    error: Callable[[int], Exception]


class Collector:
    """Receives the checks of one program while jax traces it.

    Attributes:
        call: the call that is being lowered.
        zero: of a program with collectives, an input that is 0, which XLA does not know.
        after: what the next collective has to wait for, also a 0; None for nothing.
        ordering: what waits in the program for those who read a donated buffer (`donation_ordering.py`); None where
            nothing does.
    """

    def __init__(self) -> None:
        self.call = 0
        self.zero: Any = None
        self.after: Any = None
        self.ordering: Any = None
        self.checks: list[Check] = []
        self._failed: list[Any] = []
        self._values: list[Any] = []

    @contextlib.contextmanager
    def nested(self) -> Iterator[Callable[[int], int]]:
        """While the graph behind the current call is lowered: makes the numbers of its calls."""
        outer = self.call
        yield lambda number: outer + ((number + 1) << NESTED)
        self.call = outer

    def add(self, ok: Any, error: Callable[[int], Exception], value: Any) -> None:
        self.checks.append(Check(self.call, error))
        self._failed.append(jnp.logical_not(ok))
        self._values.append(jnp.asarray(value, jnp.int64))

    def forget(self, known: int) -> None:
        """Drops all checks but the first `known`: the lowering that made them was given up."""
        del self.checks[known:], self._failed[known:], self._values[known:]

    def flag(self) -> Any:
        """int64[2]: number of the first check that failed, or -1, and the value that it checked."""
        failed = jnp.stack(self._failed)
        first = argmax(failed)
        return jnp.stack([jnp.where(failed[first], first, -1).astype(jnp.int64), jnp.stack(self._values)[first]])


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """Within the block, what the calling thread lowers hands its checks to a new collector."""
    with lowering_context.changed(collector=Collector()) as context:
        assert context.collector is not None
        yield context.collector


def current() -> Collector:
    """The collector of the program that the calling thread traces."""
    collector = lowering_context.current().collector
    assert collector is not None
    return collector


def current_call() -> int:
    """Number of the call that is being lowered, within its graph."""
    collector = lowering_context.current().collector
    return collector.call if collector is not None else 0


def require(ok: Any, error: Callable[[int], Exception], value: Any = 0) -> None:
    """Within a lowering whose operator is registered with `fallible=True`: the program fails where `ok` is false.

    Args:
        ok: boolean scalar.
        error: makes the exception from `value`.
        value: integer scalar, for the message.
    """
    collector = lowering_context.current().collector
    if collector is not None:
        collector.add(ok, error, value)


def in_range(index: Any, size: int, error: Callable[[int], Exception], lowest: int | None = None) -> None:
    """Requires every element of `index` to be in [lowest, size); `lowest` is -size by default."""
    if index.size == 0:
        return
    lowest = -size if lowest is None else lowest
    bad = jnp.logical_or(index < lowest, index >= size).reshape(-1)
    require(jnp.logical_not(bad.any()), error, index.reshape(-1)[argmax(bad)])


#: When the latest compile began, by `time.perf_counter_ns`.
compile_began = 0


class Execution(NamedTuple):
    """One run of a program.

    Attributes:
        marker: a result that is ready when all are.
        flag: what `Collector.flag` gave, if the program checks anything.
        checks: what it checks.
        graph: the program.
        lines: call number → the user's line.
        fallible: something in it is known to be able to fail.
        began: when it was started, by `time.perf_counter_ns`; 0 for what is no sample of `ExecuteTime`.
    """

    marker: jax.Array
    flag: jax.Array | None
    checks: Sequence[Check]
    graph: Graph
    lines: Mapping[int, str]
    fallible: bool
    began: int = 0

    @property
    def is_done(self) -> bool:
        """It has finished, or its results were donated to a later execution. The caller holds the device's lock: were
        the marker donated between these two, jaxlib (0.10.2) would crash.
        """
        return self.marker.is_deleted() or self.marker.is_ready()  # type: ignore[attr-defined]

    def record_time(self) -> None:
        """The metric `ExecuteTime`: from the start to where the end is seen, which is when somebody waits or the next
        execution starts; where a compile comes between, to its start. Where one device stands for several,
        `ExecuteReplicatedTime` has the same samples.
        """
        if self.began:
            end = compile_began if compile_began > self.began else time.perf_counter_ns()
            metrics.record("ExecuteTime", end - self.began)
            if self.graph.device.grid is not None:
                metrics.record("ExecuteReplicatedTime", end - self.began)

    def finish(self) -> None:
        """Waits until it has been executed.

        Raises:
            what went wrong in it.
        """
        if self.marker.is_deleted():  # a later execution, which has its buffer, stands behind it
            self.record_time()
            return
        try:
            self.marker.block_until_ready()
            self.record_time()
        except RuntimeError as error:
            found = kernel_error(error, self.graph, self.lines)
            if found is None and self.marker.is_deleted():  # meanwhile, by another thread
                self.record_time()
                return
            if found is None:
                raise
            raise found.meaning from None
        if self.flag is not None:
            number, value = self.flag.tolist()
            if number >= 0:
                check = self.checks[number]
                raise _located(check.error(value), check.call, self.graph, self.lines)


class KernelError(Exception):
    """A kernel that a program called has failed.

    Attributes:
        call: number of the call in the program.
        meaning: the exception that torch's kernel raised, which is what the user gets.
    """

    def __init__(self, call: int, meaning: Exception):
        super().__init__(str(meaning))
        self.call = call
        self.meaning = meaning


def kernel_error(error: Exception, graph: Graph, lines: Mapping[int, str] | None = None) -> KernelError | None:
    """What torch's kernel raised within a program (native/bridge.cpp, `ops/host_call.py`); None for any other error."""
    found = _KERNEL_ERROR.search(str(error))
    if found is None:
        return None
    call = int(found["call"])
    kind = KINDS.get(found["kind"], RuntimeError)
    return KernelError(call & ((1 << NESTED) - 1), _located(kind(found["message"]), call, graph, lines or {}))


def _located(error: Exception, call: int, graph: Graph, lines: Mapping[int, str]) -> Exception:
    nested = graph.calls[call & ((1 << NESTED) - 1)].nested
    if nested is not None:
        call, graph, lines = (call >> NESTED) - 1, nested.graph, nested.lines
    name = graph.calls[call].name
    line = lines.get(call)
    error.args = (f"{error}\n  {name}, called at {line}" if line else f"{error}\n  {name}",)
    return error


_KERNEL_ERROR = re.compile(r"\[aten #(?P<call>\d+) (?P<kind>\w+)\] (?P<message>.*?) \[end\]", re.DOTALL)

#: The exceptions that torch's kernels raise, by name.
KINDS: dict[str, type[Exception]] = {
    "IndexError": IndexError,
    "ValueError": ValueError,
    "TypeError": TypeError,
    "NotImplementedError": NotImplementedError,
    "LinAlgError": torch.linalg.LinAlgError,  # pyright: ignore[reportPrivateImportUsage]
}
