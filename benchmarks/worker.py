"""The process that runs one model: every mode is verified against eager, then all are timed in turn.

Each model gets a process of its own, so that its numbers do not depend on which models ran before it, its memory is
free afterwards, and a crash costs one model's rows.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch

from lazy_runtime import real_devices

from . import environment, in_jax, measure, models, remote, roofline, verify
from .modes import MODES, Program, warm_up
from .row import Row
from .training_step import SETTLING, Step

# What is compiled for a minute deserves more than the fewest rounds where these take milliseconds.
MIN_TIMING_S = 2.0

#: For each test of a model that has waited for the others.
TOGETHER_TIMING_S = 3.0


class Request(NamedTuple):
    """What to run.

    Attributes:
        model, tests, modes: names.
        batch_size: the model's default if None.
        rounds: the most that are timed; 0 verifies only.
        budget_s: seconds for this process from its start; when they are over, rounds are cut.
        float64: verify training on xla in float64 too.
        loop: steps of a timed round, of which only the last is waited for; of no account but in the test `step`.
        torch_xla: the interpreter of another environment, for the modes that run there.
        tf32: GPUs multiply float32 as TF32; else no mode does.
        together: it is timed when it is told to, which is when all models are ready.
    """

    model: str
    tests: Sequence[str]
    modes: Sequence[str]
    batch_size: int | None = None
    image_size: int = models.IMAGE_SIZE
    rounds: int = 20
    budget_s: float = 60.0
    float64: bool = False
    loop: int = 1
    torch_xla: str | None = None
    tf32: bool = False
    together: bool = False

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU's memory is shared between torch and XLA."""
        return any(MODES[mode].device == "cuda" for mode in self.modes)

    def peer(self, mode: str) -> str | None:
        """Eager on the GPU, where a mode computes there with fewer bits than float32's."""
        if not self.on_gpu or MODES[mode].device == "cpu":
            return None
        return "cuda_bfloat16" if MODES[mode].autocast else "cuda" if self.tf32 else None

    def modes_of(self, test: str) -> list[str]:
        """The modes that have something to run in a test."""
        return [
            mode
            for mode in self.modes
            if test in MODES[mode].tests and (not MODES[mode].by_hand or self.model in in_jax.MODELS)
        ]

    def program(self, test: str, mode: str, model: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> Program:
        """What runs a model in a mode."""
        if MODES[mode].elsewhere:
            return remote.Program.alone(self.torch_xla or sys.executable, self._asdict(), test, mode)
        if MODES[mode].by_hand:
            return in_jax.JaxProgram(self.model, MODES[mode], model, inputs)
        if test == "step":
            return Step(MODES[mode], model, inputs, self.loop)
        return Program(MODES[mode], model, inputs)

    def float64_modes(self, test: str) -> list[str]:
        """The modes that are verified in float64."""
        if not self.float64 or test == "inference":
            return []
        return [mode for mode in self.modes_of(test) if MODES[mode].device == "xla"]

    def failed_row(self, test: str, mode: str, failure: str) -> dict[str, Any]:
        """The record of a row of which nothing is known but that it failed."""
        return {**self.name(test), "mode": mode, "checks": [], "failure": failure}

    def name(self, test: str) -> dict[str, Any]:
        """What tells the records of a test from those of others."""
        named = {"model": self.model, "test": test}
        return named if self.batch_size is None else {**named, "batch_size": self.batch_size}

    @property
    def steps(self) -> int:
        """How many steps the worker reports."""
        return sum(
            1 + len(self.modes_of(test)) + len(self.float64_modes(test)) + (self.rounds > 0) for test in self.tests
        )


def main(request: Request, connection: Connection, log: str) -> None:
    """Entry point of the process. It sends `("step", text)` before each step, `("alive", text)` within one that takes
    long, `("row", record)` for each mode, and `("died", why)` for what no row could hold.

    Args:
        log: file that takes what this process and its libraries write to the standard streams.
    """
    with open(log, "ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    deadline = time.perf_counter() + request.budget_s
    # every mode is another compilation of the same code, and past the limit Dynamo leaves it to eager
    torch._dynamo.config.recompile_limit = 100
    if request.on_gpu:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch needs memory there too
    try:
        with _cold_caches(request.modes):
            warm_up(request.modes)
            if "step" in request.tests:
                warm_up(request.modes_of("step"), Step)
            for number, test in enumerate(request.tests):
                now = time.perf_counter()
                # what is left, in equal parts to the tests that are left
                share = now + (deadline - now) / (len(request.tests) - number)
                _run_guarded(request, test, share, connection)
    except Exception as error:
        traceback.print_exc()
        connection.send(("died", environment.one_line(error)))


def _run_guarded(request: Request, test: str, deadline: float, connection: Connection) -> None:
    """Runs one test; where it fails as a whole, all its rows do, and the next test has its chance."""
    try:
        records = run_test(request, test, deadline, lambda kind, text: _tell(connection, kind, text))
    except Exception as error:
        traceback.print_exc()
        records = [request.failed_row(test, mode, environment.one_line(error)) for mode in request.modes_of(test)]
    for record in records:
        connection.send(("row", record))
    _free()
    torch.compiler.reset()  # drops what it compiled for programs that are gone


def _tell(connection: Connection, kind: str, text: str) -> None:
    connection.send((kind, text))
    if kind == "ready":
        connection.recv()


@contextlib.contextmanager
def _cold_caches(modes: Sequence[str]) -> Iterator[None]:
    """First calls compile: what earlier processes left on the disk is not used."""
    os.environ["XLA_PERSISTENT_CACHE_PATH"] = "0"
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
    if not any(mode.startswith("inductor") for mode in modes):
        yield
        return
    from torch._inductor.utils import fresh_cache

    with fresh_cache():
        yield


def run_test(request: Request, test: str, deadline: float, tell: Callable[[str, str], None]) -> list[dict[str, Any]]:
    """Verifies and times one model in one test, and returns a record for each mode.

    Args:
        deadline: by `time.perf_counter`, when to stop timing.
        tell: told `"step"` and what comes next, `"alive"` and what comes next within a step, or `"ready"`, after
            which it returns when this model may be timed.
    """

    def step(text: str) -> None:
        tell("step", f"{name}: {text}")

    name = f"{request.model} {test}"
    model = models.without_dropout(models.build(request.model)).train(test != "inference")
    inputs = models.example(request.model, request.batch_size, request.image_size)
    common = {
        **request.name(test),
        "input_shape": list(inputs[0].shape),
        "flops": roofline.flops(model, inputs),
        "weight_bytes": roofline.weight_bytes(model),
        "xla_device": real_devices()[0],
        "torch_threads": torch.get_num_threads(),
    }
    if test == "step":
        common["loop"] = request.loop
    if request.on_gpu:
        common["tf32"] = request.tf32

    def first_call(mode: str, expected: verify.Reference | None) -> Row:
        row = Row({**common, "mode": mode})
        row.first_call(lambda: request.program(test, mode, model, inputs), expected)
        _free()
        return row

    step("eager, the reference")
    eager = first_call("eager", None)
    if eager.program is None:
        raise RuntimeError(f"eager, which all else is compared with, failed: {eager.failure}")
    exact = reference(request, test, eager.program.results())
    eager.compare(exact)
    if request.on_gpu:
        torch.set_float32_matmul_precision("high" if request.tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = request.tf32

    @functools.cache
    def expected(peer: str | None) -> verify.Reference:
        """What modes are held to that no more is asked of than a peer gives."""
        if peer is None:
            return exact
        program = request.program(test, peer, model, inputs)
        program.run()
        results = {name: tensor.float() for name, tensor in program.results().items()}
        return exact._replace(own_error=verify.relative_error(results, exact.results))

    rows: list[Row] = []
    for mode in request.modes_of(test):
        step(f"first call of {mode}")
        rows.append(eager if mode == "eager" else first_call(mode, expected(request.peer(mode))))
        if test == "step":
            rows[-1].settle(SETTLING)
    del eager
    if request.float64_modes(test):
        _compare_float64(request, test, rows, step)
    times: dict[str, list[float]] = {}
    if request.rounds:
        if request.together:
            tell("ready", name)
            deadline = time.perf_counter() + TOGETHER_TIMING_S
        step("timing")
        timed = {row.record["mode"]: row for row in rows if row.program is not None}
        times = measure.interleave(
            timed,
            request.rounds,
            max(deadline, time.perf_counter() + MIN_TIMING_S),
            unkept=0
            if test == "step" and request.loop > 1
            else 1,  # a loop's first steps have been run, and it is long
            before=lambda mode: tell("alive", f"{name}: timing {mode}"),
            brief_s=measure.BRIEF_ON_GPU_S if request.on_gpu else measure.BRIEF_S,
        )
    for row in rows:
        row.first_step_again()
        # the last results: a second call may be wrong where the first was right
        row.compare(expected(request.peer(row.record["mode"])))
        row.finish(times.get(row.record["mode"], []))
    return [row.finished() for row in rows]


def reference(request: Request, test: str, results: verify.Results) -> verify.Reference:
    """What a model's results in float32 are compared with, from eager's."""
    return verify.reference(results, exact_results(request, test))


def exact_results(request: Request, test: str) -> verify.Results | None:
    """What eager computes in float64, where its results in float32 are inexact themselves, which gradients through
    batch norm are. It seeds torch's generator: not for several threads at once.
    """
    if test == "inference" or not models.MODELS[request.model].has_batch_norm:
        return None
    eager = _in_float64(request, test, "eager", request.image_size)
    eager.run()
    return {name: tensor.float() for name, tensor in eager.results().items()}


def _compare_float64(request: Request, test: str, rows: Sequence[Row], step: Callable[[str], None]) -> None:
    """Holds rows to eager's gradients or updates in float64, on images small enough for it."""

    def program(mode: str) -> Program:
        return _in_float64(request, test, mode, verify.FLOAT64_IMAGE_SIZE)

    eager = program("eager")
    eager.run()
    expected = verify.Reference(eager.results())
    del eager
    for row in rows:
        mode = row.record["mode"]
        if mode in request.float64_modes(test):
            step(f"float64 {verify.RESULTS[test]} of {mode}")
            row.compare_another(lambda mode=mode: program(mode), expected)
            _free()


def _in_float64(request: Request, test: str, mode: str, image_size: int) -> Program:
    """A model in a mode, in float64."""
    model = models.without_dropout(models.build(request.model)).double().train()
    inputs = [
        tensor.double() if tensor.is_floating_point() else tensor
        for tensor in models.example(request.model, request.batch_size, image_size)
    ]
    return request.program(test, mode, model, inputs)


def _free() -> None:
    """Lets go of programs that are gone: models and tracebacks are full of reference cycles."""
    gc.collect()
