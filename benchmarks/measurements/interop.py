"""What it costs to go between torch and jax: a function of jax as an operator of torch, a module of torch as a function
of jax, and a compiled function that another process loads.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from tabulate import tabulate
from tqdm import tqdm

import lazy_runtime
import lazy_runtime.jax

from .. import in_jax, measure, models
from . import fresh, hosttime

#: Microseconds that a function of jax may take more than an operator, to be recorded.
MOST_MORE = 5.0

#: What a module as a function of jax may take more than the same model written in jax by hand.
MOST_SLOWER = 1.05

#: Seconds to the first result of a loaded package, beside the reading of its weights.
MOST_TO_RESULT = 0.3

#: What is recorded, with a matrix and another one.
CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "torch.neg(x)": lambda x, y: torch.neg(x),
    "jax.call(jnp.negative, x)": lambda x, y: lazy_runtime.jax.call(jnp.negative, x),
}

#: The models that are written by hand: name → what makes the function, batch size, image size.
BY_HAND = {"llama": (in_jax.llama, 2, 0), "resnet50": (in_jax.resnet50, 4, 224)}


def call_times(graphs: int) -> dict[str, measure.Summary]:
    """Microseconds to record a call, by what it is (`hosttime.recorded_times`)."""
    return hosttime.recorded_times(graphs, CALLS)[0]


def call_table(found: dict[str, measure.Summary]) -> str:
    """The times of recorded calls, and how much more one of jax takes."""
    operator, function = found.values()
    body = [[name, *(round(x, 2) for x in (each.median, each.spread, each.fastest))] for name, each in found.items()]
    more = function.median - operator.median
    verdict = "met" if more <= MOST_MORE else "missed"
    headers = ["recorded", "median µs", "interquartile range", "fastest"]
    return (
        f"### A function of jax as an operator, of graphs of {hosttime.LENGTH}, microseconds\n\n"
        f"{tabulate(body, headers=headers, tablefmt='github')}\n\n"
        f"It takes {more:.2f} µs more than an operator; the bound is {MOST_MORE:.0f} ({verdict})."
    )


def model_times(name: str, rounds: int) -> dict[str, measure.Summary]:
    """Milliseconds of a call of a model through `lazy_runtime.jax.function`, and of its counterpart in jax. They take
    turns.

    Raises:
        RuntimeError: they do not compute the same.
    """
    make, batch_size, image_size = BY_HAND[name]
    model = models.build(name).eval()
    inputs = [_array(each) for each in models.example(name, batch_size, image_size)]
    params, function = lazy_runtime.jax.function(model)
    called = {
        "through function": jax.jit(function),
        "by hand": jax.jit(make(model)),
    }
    first = [np.asarray(jax.tree.leaves(each(params, *inputs))[0]) for each in called.values()]
    error = np.abs(first[0] - first[1]).max() / np.abs(first[1]).max()
    if not error < 1e-4:
        raise RuntimeError(f"{name} through function and by hand differ by {error:.1e}")
    times: dict[str, list[float]] = {each: [] for each in called}
    for _ in tqdm(range(rounds), unit="round", dynamic_ncols=True, disable=None):
        for each, run in called.items():
            jax.block_until_ready(run(params, *inputs))  # the other one's turn has emptied the processor's caches
            times[each].append(1e3 * measure.seconds(lambda run=run: jax.block_until_ready(run(params, *inputs))))
    return {each: measure.summarize(series) for each, series in times.items()}


def _array(tensor: torch.Tensor) -> jax.Array:
    host = tensor.numpy()
    return jnp.asarray(host.astype(np.int32) if host.dtype == np.int64 else host)


def model_table(found: dict[str, dict[str, measure.Summary]]) -> str:
    """The times of the models, and how much slower than by hand each is."""
    body = []
    for name, times in found.items():
        mine, by_hand = times["through function"], times["by hand"]
        ratio = mine.median / by_hand.median
        verdict = "met" if ratio <= MOST_SLOWER else "missed"
        row = [name, mine.median, mine.spread, by_hand.median, by_hand.spread]
        body.append([row[0], *(round(each, 2) for each in row[1:]), round(ratio, 3), MOST_SLOWER, verdict])
    headers = ["model", "through function ms", "spread", "by hand ms", "spread", "ratio", "bound", ""]
    title = "### A module as a function of jax, beside the same model written in jax by hand"
    return f"{title}\n\n{tabulate(body, headers=headers, tablefmt='github')}"


class Loaded(NamedTuple):
    """What a process that loads a package has seen, in seconds.

    Attributes:
        imports: of the processor's time, until torch, jax and what loads packages are imported.
        load: of the package, its weights included.
        result: the first call, until its result is there.
        weights: reading the weights alone, once more.
    """

    imports: float
    load: float
    result: float
    weights: float


def loaded_here(path: str, digest: str) -> Loaded:
    """Loads a package of a BERT in this process, in which nothing was run before."""
    from openxla_backend.packaging import archive, loading

    imports = time.process_time()
    tokens = torch.zeros(1, 128, dtype=torch.int64)
    start = time.perf_counter()
    function = loading.load(path, digest=digest)
    load = time.perf_counter() - start
    start = time.perf_counter()
    function(tokens)
    result = time.perf_counter() - start
    start = time.perf_counter()
    copies = [each.clone() for each in archive.read(path, digest, None).weights.values()]
    weights = time.perf_counter() - start
    assert copies
    return Loaded(imports, load, result, weights)


def loads(rounds: int) -> list[Loaded]:
    """Processes one after the other that load a package of the published BERT, for one sequence of 128 tokens."""
    with tempfile.TemporaryDirectory() as folder:
        model = models.build("BERT_pytorch").eval()
        path = str(Path(folder) / "package")
        made = lazy_runtime.package(model, (torch.zeros(1, 128, dtype=torch.int64),), path, key=b"benchmark")
        return [
            Loaded(*fresh.call(loaded_here, path, made.digest))
            for _ in tqdm(range(rounds), unit="process", dynamic_ncols=True, disable=None)
        ]


def load_table(found: Sequence[Loaded]) -> str:
    """The times of processes that have loaded a package."""
    medians = [measure.summarize(list(series)).median for series in zip(*found, strict=True)]
    times = Loaded(*medians)
    beside = measure.summarize([each.load + each.result - each.weights for each in found])
    verdict = "met" if beside.median <= MOST_TO_RESULT else "missed"
    body = [[*(round(each, 3) for each in times), round(beside.median, 3), MOST_TO_RESULT, verdict]]
    headers = ["imports", "load", "first result", "weights alone", "load and result without weights", "bound", ""]
    title = f"### The published BERT, loaded from a package, seconds (median of {len(found)} processes)"
    return f"{title}\n\n{tabulate(body, headers=headers, tablefmt='github')}"


def tables(repeat: int) -> Iterator[str]:
    """Of calls, models and packages.

    Args:
        repeat: graphs of calls; models take a quarter as many turns, and packages a twentieth as many processes.
    """
    yield call_table(call_times(repeat))
    yield model_table({name: model_times(name, max(1, repeat // 4)) for name in BY_HAND})
    yield load_table(loads(max(1, repeat // 20)))
