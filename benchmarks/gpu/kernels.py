"""What a mode spends its time on: the kernels that take longest, by the profilers of jax and torch."""

from __future__ import annotations

import collections
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from .. import models
from ..modes import MODES, Program
from .precision import DeviceRequest, registered

RUNS = 5
LISTED = 12

#: Threads of XLA's on the CPU, where a dry run looks.
_THREADS = ("tf_XLA", "XLA", "tf_pjrt", "pjrt")


@registered()
def top(
    model: str, test: str, mode: str, tf32: bool, batch_size: int | None, image_size: int
) -> list[dict[str, str | float]]:
    """The kernels that take longest in a run, with their milliseconds and calls a run."""
    if MODES[mode].device == "cuda" or tf32:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = tf32
    request = DeviceRequest(model, [test], [mode], batch_size=batch_size, image_size=image_size, tf32=tf32)
    built = models.without_dropout(models.build(model)).train(test != "inference")
    program = request.program(test, mode, built, models.example(model, batch_size, image_size))
    for _ in range(3):  # the second step of an optimizer is another program, and CUDA graphs are recorded late
        program.clear()
        program.run()
    events = _by_jax(program) if MODES[mode].device == "xla" else _by_torch(program)
    found: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0])
    for name, milliseconds, calls in events:
        found[name][0] += milliseconds / RUNS
        found[name][1] += calls / RUNS
    longest = sorted(found.items(), key=lambda item: -item[1][0])[:LISTED]
    return [{"name": name, "ms": round(ms, 4), "calls": round(calls, 1)} for name, (ms, calls) in longest]


def _run(program: Program) -> None:
    for _ in range(RUNS):
        program.clear()
        program.run()


def _by_torch(program: Program) -> Iterator[tuple[str, float, float]]:
    """Name, milliseconds and calls of kernels, XLA's on CUDA tensors among them; on the CPU of operators."""
    from torch.profiler import ProfilerActivity, profile

    on_gpu = program.mode.device == "cuda"
    with profile(activities=[ProfilerActivity.CUDA] if on_gpu else [ProfilerActivity.CPU]) as profiler:
        _run(program)
    for event in profiler.key_averages():
        microseconds = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        if microseconds:
            yield event.key, microseconds / 1e3, event.count


def _by_jax(program: Program) -> Iterator[tuple[str, float, float]]:
    """Name, milliseconds and calls of what the xla device executed."""
    import jax

    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            _run(program)
        for file in Path(folder).rglob("*.xplane.pb"):
            yield from _executed(jax.profiler.ProfileData.from_file(str(file)))


def _executed(data: Any) -> Iterator[tuple[str, float, float]]:
    """The events of a GPU's streams; where there is no GPU, of XLA's threads."""
    planes = list(data.planes)
    devices = [plane for plane in planes if plane.name.startswith("/device:GPU")]
    for plane in devices or planes:
        for line in plane.lines:
            if "Stream" in line.name if devices else line.name.startswith(_THREADS):
                yield from ((event.name, event.duration_ns / 1e6, 1) for event in line.events)
