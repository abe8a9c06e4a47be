"""Host time of a call: how long the user's thread is busy before it can prepare the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from tabulate import tabulate
from tqdm import tqdm

import lazy_runtime
from lazy_runtime import metrics

from . import measure, models
from .modes import MODES, Mode, Program, warm_up

MODEL, BATCH_SIZE, IMAGE_SIZE = "resnet18", 1, 32


class Bound(NamedTuple):
    """What a host time is held to, in milliseconds.

    Attributes:
        most: our bound.
        pytorch_xla: PyTorch/XLA 2.9 on the kind of machine that the bounds are for: two Zen 5 cores.
    """

    most: float
    pytorch_xla: float


BOUNDS = {"openxla": Bound(0.6, 0.63), "lazy": Bound(2.5, 2.4)}

#: Microseconds of eager `torch.add` on two small CPU tensors on the machine that the bounds are for: machines of other
#: speed are told by it.
REFERENCE_ADD = 0.9
WHAT = {
    "openxla": "openxla: the call",
    "lazy": "lazy: trace and sync",
    "dynamo": "Dynamo alone: a backend that does nothing",
}


def nothing(gm: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
    """A Dynamo backend whose compiled function returns one and the same tensor: what is left of a call is Dynamo's own
    work, its guards and the fetching of parameters, which no backend can save."""
    result = torch.zeros(1, device="xla")
    return lambda *arguments: (result,)


def host_times(calls: int) -> dict[str, measure.Summary]:
    """Milliseconds until control returns, by mode. Executions are waited for between the calls, untimed."""
    warm_up(list(BOUNDS))
    model = models.build(MODEL).eval()
    inputs = models.example(MODEL, BATCH_SIZE, IMAGE_SIZE)
    # after each of the executions that stream the weights through the processor's caches, as the calls before it are
    programs = {mode: Program(MODES[mode], model, inputs) for mode in BOUNDS}
    programs["dynamo"] = Program(Mode(device="xla", backend=nothing), model, inputs)

    def start(mode: str) -> None:
        programs[mode].start()
        if mode == "lazy":
            lazy_runtime.sync()

    series: dict[str, list[float]] = {mode: [] for mode in programs}
    warm = min(20, calls)
    compiled = 0
    for number in tqdm(range(-warm, calls), unit="call", dynamic_ncols=True, disable=None):
        if number == 0:
            compiled = metrics.value("UncachedCompile")
        for mode, program in programs.items():
            program.clear()
            taken = measure.seconds(lambda mode=mode: start(mode))
            program.wait()
            if number >= 0:
                series[mode].append(1e3 * taken)
    if metrics.value("UncachedCompile") != compiled:
        raise RuntimeError("a call after the first ones compiled: host times of such calls mean nothing")
    return {mode: measure.summarize(times) for mode, times in series.items()}


def add_time() -> float:
    """Microseconds of eager `torch.add` on two small CPU tensors, here and now."""
    x, y = torch.ones(4, 2), torch.ones(4, 2)

    def thousand_adds() -> None:
        for _ in range(1000):
            torch.add(x, y)

    return 1e3 * measure.summarize([measure.seconds(thousand_adds) for _ in range(20)]).median


def table(summaries: dict[str, measure.Summary], add: float) -> str:
    """The host times beside their bounds.

    Args:
        add: what `add_time` gave.
    """
    slower = add / REFERENCE_ADD
    body = []
    for mode, found in summaries.items():
        row = [WHAT[mode], round(found.median, 3), round(found.spread, 3), round(found.fastest, 3)]
        if mode in BOUNDS:
            most = BOUNDS[mode].most
            for bound in (most, slower * most):
                row += [round(bound, 3), "met" if found.median <= bound else "missed"]
            row.append(BOUNDS[mode].pytorch_xla)
        body.append(row)
    times = ["median ms", "interquartile range", "fastest"]
    headers = ["host time", *times, "bound", "", "scaled bound", "", "PyTorch/XLA"]
    title = f"### Host time of {MODEL} on {BATCH_SIZE} image of {IMAGE_SIZE}x{IMAGE_SIZE}, milliseconds"
    scale = (
        f"An eager CPU add takes {add:.2f} µs here and {REFERENCE_ADD} µs on the machine that the bounds and "
        f"PyTorch/XLA's times are from; the scaled bound is {slower:.2f} times the bound."
    )
    return f"{title}\n\n{tabulate(body, headers=headers, tablefmt='github')}\n\n{scale}"
