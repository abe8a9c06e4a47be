"""One point of a growth measurement: the cost of one size of work, in one mode and a process of its own."""

from __future__ import annotations

import faulthandler
import re
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import torch

import lazy_runtime
from lazy_runtime.debug import metrics
from lazy_runtime.tensor.xla_tensor import values_of

from .. import measure
from . import fresh
from .growth_axes import AXES

#: Device and backend of torch.compile.
MODES: dict[str, tuple[str, str | None]] = {
    "eager": ("cpu", None),
    "lazy": ("xla", None),
    "openxla": ("xla", "openxla"),
}

#: Runs are repeated for this long, but so often at the least and at the most.
REPEAT_S, LEAST_RUNS, MOST_RUNS = 1.0, 3, 20


class Point(NamedTuple):
    """What one process has seen. Times in seconds.

    Attributes:
        trace: the first run, less its compile and its execution (metric `ExecuteTime`); None for eager.
        compile: jax's tracing and XLA, summed over programs (metric `CompileTime`); None for eager.
        run: the median of repeated runs, each from the call until its results are complete.
        memory: the most host bytes in use, beyond those of the process after its warm-up.
        peak: the most host bytes in use.
    """

    trace: float | None
    compile: float | None
    run: float
    memory: int
    peak: int


def least(points: Sequence[Point]) -> Point:
    """The least of each measure, over several processes."""
    traces, compiles, *others = zip(*points, strict=True)
    staged = (None, None) if None in traces else (min(traces), min(compiles))
    return Point(*staged, *map(min, others))


class LimitError(RuntimeError):
    """A point took longer than its limit; the message names the line where it was."""


def measured(axis: str, size: int, mode: str, limit_s: float) -> Point:
    """Measures a point in a new process, with no cache on disk.

    Raises:
        LimitError: it took longer than the limit.
        RuntimeError: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "traceback"
        try:
            return Point(
                *fresh.call(here, axis, size, mode, limit_s, str(log), environment={"XLA_PERSISTENT_CACHE_PATH": "0"})
            )
        except RuntimeError:
            text = log.read_text() if log.exists() else ""
            if not text:
                raise
            raise LimitError(_innermost(text)) from None


def _innermost(text: str) -> str:
    """The innermost frame of the main thread, which faulthandler writes last."""
    found = re.search(r'File "(.*)", line (\d+) in (.*)', text.rpartition("Thread ")[2])
    if found is None:
        return "at an unknown line"
    path, line, name = found.groups()
    return f"in {'/'.join(Path(path).parts[-2:])}:{line} ({name})"


def here(axis: str, size: int, mode: str, limit_s: float, log: str) -> Point:
    """Measures a point in this process, and ends the process at the limit.

    Args:
        log: the file that gets the threads' tracebacks at the limit.
    """
    with Path(log).open("w") as file:
        # a signal's handler in Python would wait for C++ to return
        faulthandler.dump_traceback_later(limit_s, exit=True, file=file)
        try:
            return _measure(axis, size, mode)
        finally:
            faulthandler.cancel_dump_traceback_later()


def _measure(axis: str, size: int, mode: str) -> Point:
    device, backend = MODES[mode]
    _warm_up(device, backend)
    before = peak_bytes()
    torch.manual_seed(0)
    work = AXES[axis].make(size)
    function = work.function.to(device) if isinstance(work.function, torch.nn.Module) else work.function
    calls = [tuple(tensor.to(device) for tensor in arguments) for arguments in work.calls]
    call: Callable[..., torch.Tensor] = torch.compile(function, backend=backend) if backend else function
    _wait(device, [])

    def start(arguments: tuple[torch.Tensor, ...]) -> torch.Tensor:
        result = call(*arguments)
        if mode == "lazy":
            lazy_runtime.sync()
        return result

    def first() -> None:
        for arguments in calls:
            result = start(arguments)
            _wait(device, [result])  # one by one, or `ExecuteTime` would last into the next call
            kept.append(result)

    kept: list[torch.Tensor] = []
    with torch.no_grad():
        trace, compile_ = _stages(first)
        if not all(bool(result.cpu().isfinite().all()) for result in kept):
            raise RuntimeError(f"{axis} of {size} is not finite in the mode {mode}")
        kept.clear()
        times = _repeated(lambda: _wait(device, [start(arguments) for arguments in calls]))
    peak = peak_bytes()
    staged = (None, None) if mode == "eager" else (trace, compile_)
    # the kernel counts pages in batches, so that its peak falls by a few
    return Point(*staged, statistics.median(times), max(0, peak - before), peak)


def _stages(first: Callable[[], object]) -> tuple[float, float]:
    """Seconds of a first run, by stage: tracing, and compile."""
    compile_s, execute_s = _metric_s("CompileTime"), _metric_s("ExecuteTime")
    whole = measure.seconds(first)
    compile_s, execute_s = _metric_s("CompileTime") - compile_s, _metric_s("ExecuteTime") - execute_s
    return max(0.0, whole - compile_s - execute_s), compile_s


def _metric_s(name: str) -> float:
    """The sum of a metric's samples, in seconds."""
    found = metrics.metric_data(name)
    return 0.0 if found is None else found[1] / 1e9


def _warm_up(device: str, backend: str | None) -> None:
    """Brings up the device and Dynamo, which take the same time for each size."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    x = torch.ones(2, device=device)
    _wait(device, [(torch.compile(function, backend=backend) if backend else function)(x)])
    torch.compiler.reset()


def _wait(device: str, results: list[torch.Tensor]) -> None:
    if device == "xla":
        lazy_runtime.sync(wait=True)
        jax.block_until_ready([value.array for value in values_of(results)])


def _repeated(run: Callable[[], Any]) -> list[float]:
    times = [measure.seconds(run)]
    while len(times) < LEAST_RUNS or (len(times) < MOST_RUNS and sum(times) < REPEAT_S):
        times.append(measure.seconds(run))
    return times


def peak_bytes() -> int:
    """The most host memory that this process has had."""
    # `ru_maxrss` begins with that of the parent process, as exec keeps it
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    if found is None:
        raise RuntimeError("/proc/self/status has no VmHWM: peak memory is known on Linux alone")
    return 1024 * int(found[1])
