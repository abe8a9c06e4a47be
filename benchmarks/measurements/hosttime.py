"""Host time of a call, and of an operator that is recorded: how long the user's thread is busy before it can go on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from tabulate import tabulate
from tqdm import tqdm

import lazy_runtime

from .. import counters, measure, models
from ..modes import MODES, Mode, Program, warm_up

BATCH_SIZE, IMAGE_SIZE = 1, 32


class Bound(NamedTuple):
    """What a host time is held to, in milliseconds.

    Attributes:
        most: our bound.
        pytorch_xla: PyTorch/XLA 2.9 on the kind of machine that the bounds are for: two Zen 5 cores; None where that
            was not measured.
    """

    most: float
    pytorch_xla: float | None = None


MODES_TIMED = ("openxla", "lazy")

#: By model: one of 102 parameters and buffers, and one of 314.
BOUNDS = {
    "resnet18": {"openxla": Bound(0.6, 0.63), "lazy": Bound(2.5, 2.4)},
    "mnasnet1_0": {"openxla": Bound(0.3)},
}

#: Microseconds of eager `torch.add` on two small CPU tensors on the machine that the bounds are for: machines of other
#: speed are told by it.
REFERENCE_ADD = 0.9
WHAT = {
    "openxla": "openxla: the call",
    "lazy": "lazy: trace and sync",
    "dynamo": "Dynamo alone: a backend that does nothing",
}


#: Microseconds that an operator on lazy tensors may take to be recorded.
MOST_RECORDED = 4.0

#: What is recorded, with a matrix and another one.
RECORDED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "x + y": lambda x, y: x + y,
    "relu(x)": lambda x, y: torch.relu(x),
    "x @ y": lambda x, y: x @ y,
    "x * 3.5": lambda x, y: x * 3.5,
    "x.t()": lambda x, y: x.t(),
    "x.add_(y)": lambda x, y: x.add_(y),
}

#: Operators in a graph: as many as a small network has.
LENGTH = 200


def nothing(gm: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
    """A Dynamo backend whose compiled function returns one and the same tensor: what is left of a call is Dynamo's own
    work, its guards and the fetching of parameters, which no backend can save.
    """
    result = torch.zeros(1, device="xla")
    return lambda *arguments: (result,)


class HostTimes(NamedTuple):
    """Milliseconds until control returns.

    Attributes:
        first: of a call on an idle device: the execution before it, which was waited for, has streamed the weights
            through the processor's caches.
        following: of the calls after it, none of whose executions is waited for.
    """

    first: measure.Summary
    following: measure.Summary


#: Calls between two waits; the runtime itself holds back who is more than 32 executions ahead.
BURST = 8


def host_times(name: str, bursts: int) -> dict[str, HostTimes]:
    """Host times of a model by mode, of `bursts` times `BURST` calls; the modes take turns."""
    warm_up(list(MODES_TIMED))
    model = models.build(name).eval()
    inputs = models.example(name, BATCH_SIZE, IMAGE_SIZE)
    programs = {mode: Program(MODES[mode], model, inputs) for mode in MODES_TIMED}
    programs["dynamo"] = Program(Mode(device="xla", backend=nothing), model, inputs)

    def start(mode: str) -> None:
        programs[mode].start()
        if mode == "lazy":
            lazy_runtime.sync()

    first: dict[str, list[float]] = {mode: [] for mode in programs}
    following: dict[str, list[float]] = {mode: [] for mode in programs}
    warm = min(5, bursts)
    compiled = 0
    for number in tqdm(range(-warm, bursts), unit="burst", dynamic_ncols=True, disable=None):
        if number == 0:
            compiled = counters.value("UncachedCompile")
        for mode, program in programs.items():
            program.clear()
            times = [1e3 * measure.seconds(lambda mode=mode: start(mode)) for _ in range(BURST)]
            program.wait()
            if number >= 0:
                first[mode].append(times[0])
                following[mode] += times[1:]
    if counters.value("UncachedCompile") != compiled:
        raise RuntimeError("a call after the first ones compiled: host times of such calls mean nothing")
    return {mode: HostTimes(measure.summarize(first[mode]), measure.summarize(following[mode])) for mode in programs}


def recorded_times(
    graphs: int, recorded: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = RECORDED
) -> tuple[dict[str, measure.Summary], float]:
    """Microseconds to record an operator, by what it is: the mean over each of as many graphs of `LENGTH` of it. The
    operators take turns. Nothing is executed: what is recorded is dropped.

    Returns:
        the times, and the median of `add_time`, which had its turns too.
    """
    y = torch.randn(64, 64, device="xla")
    lazy_runtime.sync()
    times: dict[str, list[float]] = {name: [] for name in recorded}

    def graph(call: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], x: torch.Tensor) -> None:
        for _ in range(LENGTH):
            call(x, y)

    warm = min(5, graphs)
    adds = []
    with torch.no_grad():
        for number in range(-warm, graphs):
            for name, call in recorded.items():
                seconds = measure.seconds(functools.partial(graph, call, y.clone()))
                lazy_runtime.sync()
                if number >= 0:
                    times[name].append(1e6 * seconds / LENGTH)
            adds.append(add_time(2))
    return {name: measure.summarize(series) for name, series in times.items()}, measure.summarize(adds).median


def recorded_table(found: dict[str, measure.Summary], add: float) -> str:
    """The times of recorded operators beside their bound.

    Args:
        add: what `add_time` gave.
    """
    scaled = add / REFERENCE_ADD * MOST_RECORDED
    body = []
    for name, summary in found.items():
        row: list[object] = [name, *(round(x, 2) for x in (summary.median, summary.spread, summary.fastest))]
        for bound in (MOST_RECORDED, scaled):
            row += [round(bound, 2), "met" if summary.median <= bound else "missed"]
        body.append(row)
    headers = ["recorded", "median µs", "interquartile range", "fastest", "bound", "", "scaled bound", ""]
    title = f"### An operator recorded lazily, of graphs of {LENGTH}, microseconds"
    return f"{title}\n\n{tabulate(body, headers=headers, tablefmt='github')}\n\n{_scale(add)}"


def _scale(add: float) -> str:
    return (
        f"An eager CPU add takes {add:.2f} µs here and {REFERENCE_ADD} µs on the machine that the bounds and "
        f"PyTorch/XLA's times are from; the scaled bound is {add / REFERENCE_ADD:.2f} times the bound."
    )


def tables(names: Sequence[str], repeat: int) -> Iterator[str]:
    """Of recorded operators, and of each of the models."""
    yield recorded_table(*recorded_times(repeat))
    for name in names:
        yield table(name, host_times(name, repeat), add_time())


def add_time(thousands: int = 20) -> float:
    """Microseconds of eager `torch.add` on two small CPU tensors, here and now: the median of means over a thousand."""
    x, y = torch.ones(4, 2), torch.ones(4, 2)

    def thousand_adds() -> None:
        for _ in range(1000):
            torch.add(x, y)

    return 1e3 * measure.summarize([measure.seconds(thousand_adds) for _ in range(thousands)]).median


def table(name: str, found: dict[str, HostTimes], add: float) -> str:
    """The host times of a model beside their bounds.

    Args:
        add: what `add_time` gave.
    """
    slower = add / REFERENCE_ADD
    body = []
    for mode, times in found.items():
        for which, summary in zip(("following", "first"), (times.following, times.first), strict=True):
            row = [f"{WHAT[mode]}, {which}", *(round(x, 3) for x in (summary.median, summary.spread, summary.fastest))]
            held_to = BOUNDS[name].get(mode)
            if held_to is not None:
                most = held_to.most
                for bound in (most, slower * most):
                    row += [round(bound, 3), "met" if summary.median <= bound else "missed"]
                row.append(held_to.pytorch_xla)
            body.append(row)
    times = ["median ms", "interquartile range", "fastest"]
    headers = ["host time", *times, "bound", "", "scaled bound", "", "PyTorch/XLA"]
    title = f"### Host time of {name} on {BATCH_SIZE} image of {IMAGE_SIZE}x{IMAGE_SIZE}, milliseconds"
    which = (
        f"first: on an idle device, with cold caches; following: {BURST - 1} more calls after it, before anything is "
        "waited for."
    )
    return f"{title}\n\n{tabulate(body, headers=headers, tablefmt='github')}\n\n{which}\n{_scale(add)}"
