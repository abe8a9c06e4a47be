"""Result records as a busy machine would write them, from a seeded generator: nothing is timed."""

from __future__ import annotations

import numpy

MODELS = {"resnet18": (20.0, 24.0), "squeezenet1_1": (9.0, 5.0), "mobilenet_v2": (24.0, 14.0)}  # ms of eager, openxla
MACHINE = {"system": "Linux x86_64", "cpu": "EPYC", "cores": 2, "memory_gib": 23.5}
ENVIRONMENT = {"record": "environment", "machine": MACHINE, "flags": {}, "versions": {"jax": "0.10.2"}}


def drift(generator, rounds):
    """The machine's speed over a run: a random walk of 5 % or so."""
    return numpy.exp(numpy.cumsum(generator.normal(0, 0.05 / rounds**0.5, rounds)))


def series(generator, milliseconds, walk, process=0.005):
    """Times of one program: noise of 3 %, a process that is a little faster or slower as a whole, and a quarter of the
    rounds disturbed by other work, some of them for many times their own time.
    """
    times = milliseconds * walk * numpy.exp(generator.normal(0, 0.03, len(walk)) + generator.normal(0, process))
    times *= 1 + (generator.random(len(walk)) < 0.25) * generator.pareto(1.5, len(walk))
    return times.tolist()


def row(model, mode, times_ms, **more):
    """A record with so many milliseconds for each round."""
    record = {"record": "row", "test": "inference", "model": model, "mode": mode, "checks": [], "failure": None}
    return {**record, "input_shape": [4, 3, 64, 64], "times_ms": times_ms, **more}


def run(generator, slower=(), rounds=100, times=1.15):
    """A result file's records; openxla takes `times` as long for the models in `slower`."""
    records = [ENVIRONMENT]
    for model, (eager, openxla) in MODELS.items():
        walk, factor = drift(generator, rounds), times if model in slower else 1.0
        records.append(row(model, "eager", series(generator, eager, walk)))
        records.append(row(model, "openxla", series(generator, openxla * factor, walk)))
    return records


def two_runs(seed, slower=(), rounds=100, times=1.15):
    """The records of two runs apart from each other."""
    generator = numpy.random.default_rng(seed)
    return run(generator, rounds=rounds), run(generator, slower, rounds, times)


def in_turns(seed, slower=(), rounds=70, times=1.15, models=tuple(MODELS)):
    """The records before and after of processes that took turns, with one drift for both; each process is faster or
    slower as a whole, so that their ratio is off by 4.5 %.
    """
    generator = numpy.random.default_rng(seed)
    before, after = [], []
    for model in models:
        walk = drift(generator, rounds)
        for side, factor in ((before, 1.0), (after, times if model in slower else 1.0)):
            times_ms = series(generator, MODELS[model][1] * factor, walk, process=0.032)
            side.append(row(model, "openxla", times_ms, median_ms=float(numpy.median(times_ms))))
    return before, after
