"""Compile time: what a process waits for before a model runs, with nothing on the disk."""

from __future__ import annotations

import statistics
import tempfile
from typing import NamedTuple

import torch
from tabulate import tabulate
from tqdm import tqdm

from lazy_runtime import debug

from .. import measure, models
from ..modes import MODES, Program, warm_up
from ..training_step import SETTLING, Step
from . import fresh

MODELS = ("resnet50", "BERT_pytorch")
TESTS = ("inference", "step")
MODES_TIMED = ("inductor", "openxla")

#: What jax's tracing and XLA may take together of Inductor's time.
MOST = 0.5


class Compiling(NamedTuple):
    """What one process has seen, in seconds.

    Attributes:
        first: the first run (of steps, the first three: the optimizer makes its state in the first), beyond what as
            many settled ones take.
        compiler: of it, jax's tracing and XLA, added up over programs; 0 for Inductor, which does not say.
    """

    first: float
    compiler: float


def here(model: str, test: str, mode: str) -> Compiling:
    """The first run of a model in this process, in which nothing was run before."""
    torch.manual_seed(0)
    kind = Step if test == "step" else Program
    warm_up([mode])  # devices, Dynamo, the C++ compiler's headers
    module = models.without_dropout(models.build(model)).train(test == "step")
    program = kind(MODES[mode], module, models.example(model))
    known = len(debug.compilations())
    runs = 1 + SETTLING if test == "step" else 1
    first = sum(measure.seconds(program.run) for _ in range(runs))
    compiler = sum(each.seconds for each in debug.compilations()[known:])
    settled = statistics.median(measure.seconds(program.run) for _ in range(5))
    return Compiling(first - runs * settled, compiler)


def found(model: str, test: str, mode: str) -> Compiling:
    """`here` in a process of its own, with empty caches."""
    with tempfile.TemporaryDirectory() as cache:
        places = {"XLA_PERSISTENT_CACHE_PATH": f"{cache}/xla", "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor"}
        return Compiling(*fresh.call(here, model, test, mode, environment=places))


def table(rounds: int, names: list[str]) -> str:
    """Both compilers' times; processes take turns, so that noise falls on both alike."""
    cases = [(name, test) for name in names for test in TESTS]
    seen: dict[tuple[str, ...], list[Compiling]] = {}
    for _ in tqdm(range(rounds), unit="round", dynamic_ncols=True, disable=None):
        for case in cases:
            for mode in MODES_TIMED:
                seen.setdefault((*case, mode), []).append(found(*case, mode))

    def seconds(what: str, *key: str) -> float:
        return statistics.median(getattr(each, what) for each in seen[key])

    body = []
    for case in cases:
        theirs = seconds("first", *case, "inductor")
        compiler, first = (seconds(what, *case, "openxla") for what in ("compiler", "first"))
        verdict = "met" if compiler <= MOST * theirs else "missed"
        body.append([*case, theirs, first, compiler, compiler / theirs, verdict])
    headers = ["model", "", "inductor, first", "openxla, first", "jax and XLA", "of inductor's", f"at most {MOST}"]
    text = tabulate(body, headers=headers, tablefmt="github", floatfmt=".2f")
    return (
        f"### Compile time with empty caches, seconds (median of {rounds})\n\n{text}\n\n"
        "First: until the first result (of steps, the third), Dynamo and AOTAutograd included, less what settled runs "
        "take. Jax and XLA: of ours, what both compilers took, added up over programs, some of which are compiled "
        "side by side."
    )
