"""How long a process takes to its first result, with nothing and with everything in the cache on disk."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from tabulate import tabulate
from tqdm import tqdm

from . import fresh

MODEL = "resnet50"

#: What a full cache is held to: lazily a part of the time with an empty one, through openxla a multiple of what Dynamo
#: and AOTAutograd take.
LAZY_BOUND, OPENXLA_BOUND = 1 / 3, 1.2

ROADS = {"lazy": "lazy", "openxla": "openxla", "frontend": "Dynamo and AOTAutograd alone"}


class Start(NamedTuple):
    """What one process has seen. Times in seconds.

    Attributes:
        device: from the first use of xla until the device is there.
        result: from the first operator (lazy: that which moves the model; else: the call of the compiled model) until
            the first result is on the CPU.
        again: the next call, until its result is on the CPU.
        compiles: programs that XLA has compiled.
        hits: programs that came from the disk.
    """

    device: float
    result: float
    again: float
    compiles: int
    hits: int


def here(road: str, batch_size: int, image_size: int) -> Start:
    """The first result of this process, in which nothing was run before."""
    import lazy_runtime

    from .. import counters, models

    torch.manual_seed(0)
    model = models.build(MODEL).eval()
    inputs = models.example(MODEL, batch_size, image_size)
    start = time.perf_counter()
    torch.ones(1, device=lazy_runtime.device())  # recorded, not run
    device = time.perf_counter() - start

    def move() -> tuple[torch.nn.Module, list[torch.Tensor]]:
        return model.to("xla"), [tensor.to("xla") for tensor in inputs]

    if road == "lazy":
        start = time.perf_counter()
        call, arguments = move()
    else:
        moved, arguments = move()
        lazy_runtime.sync(wait=True)
        call = torch.compile(moved, backend="openxla" if road == "openxla" else frontend)
        start = time.perf_counter()
    with torch.no_grad():
        result = call(*arguments)
        if road != "frontend":
            result.cpu()
        first = time.perf_counter() - start
        start = time.perf_counter()
        result = call(*arguments)
        if road != "frontend":
            result.cpu()
        again = time.perf_counter() - start
    return Start(device, first, again, counters.value("UncachedCompile"), counters.value("PersistentCacheHit"))


def frontend(gm: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
    """A backend for `torch.compile` that takes what `openxla` takes and computes nothing: the results are empty."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch._aot_autograd.utils import make_boxed_func

    def compiler(gm: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        outputs: Any = gm.graph.output_node().args[0]
        found = [node.meta["val"] for node in outputs]
        looks = [(tuple(x.shape), x.dtype, x.device) for x in found]
        return make_boxed_func(lambda *_: [torch.empty(shape, dtype=kind, device=on) for shape, kind, on in looks])

    return aot_autograd(fw_compiler=compiler, decompositions={}, keep_inference_input_mutations=True)(gm, examples)


def fresh_process(road: str, cache: str, batch_size: int, image_size: int) -> Start:
    """`here` in a process of its own, which keeps its programs in a directory.

    Raises:
        RuntimeError: it failed; the message ends with what it said.
    """
    return Start(*fresh.call(here, road, batch_size, image_size, environment={"XLA_PERSISTENT_CACHE_PATH": cache}))


def starts(rounds: int, batch_size: int, image_size: int) -> dict[str, list[Start]]:
    """Processes one after the other, interleaved so that noise falls on all alike: by road, and whether the cache was
    empty or full.
    """
    found: dict[str, list[Start]] = {}
    for _ in tqdm(range(rounds), unit="round", dynamic_ncols=True, disable=None):
        for road in ROADS:
            with tempfile.TemporaryDirectory() as cache:
                for state in ("empty", "full") if road != "frontend" else ("",):
                    found.setdefault(f"{road} {state}".strip(), []).append(
                        fresh_process(road, cache, batch_size, image_size)
                    )
    return found


def table(found: dict[str, list[Start]], batch_size: int, image_size: int) -> str:
    """First results beside their bounds."""

    def seconds(name: str, what: str = "result") -> float:
        return statistics.median(getattr(each, what) for each in found[name])

    frontend_s = seconds("frontend")
    body: list[list[Any]] = []
    for road in ("lazy", "openxla"):
        full = seconds(f"{road} full")
        empty = seconds(f"{road} empty")
        bound = LAZY_BOUND * empty if road == "lazy" else OPENXLA_BOUND * frontend_s
        for state, first in (("empty", empty), ("full", full)):
            name = f"{road} {state}"
            compiles, hits = (sorted({getattr(each, what) for each in found[name]}) for what in ("compiles", "hits"))
            row = [ROADS[road], state, seconds(name, "device"), first, seconds(name, "again")]
            row += ["/".join(map(str, compiles)), "/".join(map(str, hits))]
            body.append(row + ([bound, "met" if first <= bound else "missed"] if state == "full" else ["", ""]))
    body.append([ROADS["frontend"], "", seconds("frontend", "device"), frontend_s, "", "", "", "", ""])
    headers = ["", "cache", "device", "first result", "next", "compiles", "hits", "bound", ""]
    text = tabulate(body, headers=headers, tablefmt="github", floatfmt=".2f")
    rounds = len(found["frontend"])
    images = f"{batch_size} images of {image_size}x{image_size}"
    return (
        f"### First result of {MODEL} in a new process, {images}, seconds (median of {rounds})"
        f"\n\n{text}\n\nThe first result is counted from the first operator, when the device is there. Bounds with a "
        f"full cache: lazily a third of the time with an empty one, through openxla {OPENXLA_BOUND} times what Dynamo "
        "and AOTAutograd take without compiling or running anything."
    )
