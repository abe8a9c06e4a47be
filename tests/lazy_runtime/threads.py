"""Threads that record, sync, read and write at random, each beside the same program on the CPU.

    CPU_NUM_DEVICES=4 python -m tests.lazy_runtime.threads --mode lazy --seconds 60

Numbers are small integers in float64, so that every difference is an error. Nearly all programs of such threads are new
ones, and compiling takes a hundred times as long as all else; so most of the time programs are interpreted.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import torch

import lazy_runtime
from lazy_runtime.compilation import compiler, lower
from lazy_runtime.compilation.plan import CompilePlan
from lazy_runtime.ir import dtypes
from lazy_runtime.platform import xla_devices
from lazy_runtime.torch_xla import experimental

MODES = ("lazy", "eager", "openxla", "mixed")
SIZE = 5


class Interpreted:
    """Stands for `compiler.Executable`: computes one operator of the graph after the other."""

    located = fallible = ()
    is_new = False

    def __init__(self, graph: Any):
        self.graph = graph
        self.physical = (False,) * len(graph.outputs)

    def __call__(self, leaves: list[Any], floats: Any = (), ints: Any = (), lines: Any = None, **_: Any) -> list[Any]:
        numbers = [np.array(floats, np.float64)] if self.graph.floats else []
        numbers += [np.array(ints, np.int64)] if self.graph.ints else []
        with dtypes.x64(), jax.default_device(self.graph.device.jax_device):
            results = lower.to_function(CompilePlan(self.graph), set(), [])(*leaves, *numbers)
            results = [jnp.array(result, copy=True) for result in results]
        for number in self.graph.donated:
            leaves[number].delete()
        return results


@contextlib.contextmanager
def interpreted(is_on: bool) -> Iterator[None]:
    """Within, programs are not compiled."""
    if not is_on:
        yield
        return
    with mock.patch.object(compiler, "executable", lambda graph, *_, **__: Interpreted(graph)):
        yield


class Worker:
    """One thread's tensors on its device, and what each has to be.

    Args:
        shared: tensors that all threads read, (on the device, on the CPU).
    """

    def __init__(self, number: int, seed: int, device: torch.device, mode: str, shared: list[Any], compiled: Any):
        self.choose = random.Random(seed * 1009 + number)
        self.device = device
        self.shared = shared
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.compiled = compiled
        self.steps = 0
        actions: list[Callable[[], None]] = [
            self.make, self.add, self.add, self.chain, self.combine, self.combine_shared, self.write,
            self.write_view, self.forget, self.read, self.train, self.checkpoint,
        ]  # fmt: skip
        if mode != "eager":
            actions += [self.sync, self.sync, self.long_chain]
        if mode in ("openxla", "mixed"):
            actions += [self.call, self.call, self.call_shared]
        self.actions = actions

    def step(self) -> None:
        self.choose.choice(self.actions)()
        self.steps += 1

    def put(self, on_device: torch.Tensor, on_cpu: torch.Tensor) -> None:
        """Keeps a result; what grows too large begins again."""
        self.pairs.append((on_device % 1021, on_cpu % 1021))
        del self.pairs[:-6]

    def any(self) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.pairs:
            self.make()
        return self.choose.choice(self.pairs)

    def make(self) -> None:
        values = [float(self.choose.randrange(9)) for _ in range(SIZE)]
        on_cpu = torch.tensor(values, dtype=torch.float64)
        self.pairs.append((on_cpu.to(self.device), on_cpu.clone()))
        del self.pairs[:-6]

    def add(self) -> None:
        x, y = self.any()
        number = self.choose.randrange(3, 9)
        self.put(x + number, y + number)

    def chain(self) -> None:
        x, y = self.any()
        for _ in range(self.choose.randrange(20)):
            x, y = x + 1, y + 1
        self.put(x, y)

    def long_chain(self) -> None:
        x, y = self.any()
        for _ in range(100):
            x = x + 1
        self.put(x, y + 100)

    def combine(self) -> None:
        (a, b), (c, d) = self.any(), self.any()
        self.put(a * 2 + c, b * 2 + d)

    def combine_shared(self) -> None:
        (a, b), (c, d) = self.any(), self.choose.choice(self.shared)
        self.put(a - c.to(self.device), b - d)

    def write(self) -> None:
        x, y = self.any()
        x.add_(1)
        y.add_(1)

    def write_view(self) -> None:
        x, y = self.any()
        place = self.choose.randrange(SIZE)
        x[place] += 2
        y[place] += 2

    def forget(self) -> None:
        if self.pairs:
            self.pairs.pop(self.choose.randrange(len(self.pairs)))

    def sync(self) -> None:
        lazy_runtime.sync()

    def read(self) -> None:
        x, y = self.any()
        assert torch.equal(x.cpu(), y), (x.cpu(), y)

    def train(self) -> None:
        x, y = self.any()
        a, b = x.detach().clone().requires_grad_(), y.detach().clone().requires_grad_()
        ((a * 2 + 1) * a).sum().backward()
        ((b * 2 + 1) * b).sum().backward()
        self.put(a.grad, b.grad)  # type: ignore[arg-type]

    def checkpoint(self) -> None:
        x, y = self.any()
        a, b = x.detach().clone().requires_grad_(), y.detach().clone().requires_grad_()
        # torch gives the random state to Python under a lock and may release the GIL there: threads hang that both ask
        torch.utils.checkpoint.checkpoint(
            lambda t: (t * t + t) * t, a, use_reentrant=False, preserve_rng_state=False
        ).sum().backward()
        ((b * b + b) * b).sum().backward()
        self.put(a.grad, b.grad)  # type: ignore[arg-type]

    def call(self) -> None:
        (a, b), (c, d) = self.any(), self.any()
        self.put(self.compiled(a, c), b * 3 + d)

    def call_shared(self) -> None:
        (a, b), (c, d) = self.any(), self.choose.choice(self.shared)
        self.put(self.compiled(a, c.to(self.device)), b * 3 + d)


def run(
    mode: str,
    seconds: float,
    seed: int,
    threads: int = 4,
    devices: int = 1,
    steps: int = sys.maxsize,
    compiles: bool = True,
) -> int:
    """Runs threads against each other, and compares at random and at the end.

    Args:
        mode: one of `MODES`.
        devices: how many devices the threads are spread over.
        steps: how many each of them takes at most.
        compiles: programs are compiled; compiled functions are in any case.

    Returns:
        how many steps they took in all.

    Raises:
        AssertionError: a value was wrong, or something was raised.
    """
    names = [device.torch_device for device in xla_devices.devices()[:devices]]
    numbers = [torch.arange(SIZE, dtype=torch.float64) + n for n in range(3)]
    shared = [(number.to(names[n % devices]), number.clone()) for n, number in enumerate(numbers)]
    compiled = torch.compile(lambda a, c: a * 3 + c, backend="openxla")
    experimental.eager_mode(mode == "eager")
    switch, end, errors = sys.getswitchinterval(), time.monotonic() + seconds, []
    workers = [Worker(n, seed, names[n % devices], mode, shared, compiled) for n in range(threads)]
    if mode in ("openxla", "mixed"):
        for name in names:
            compiled(shared[0][0].to(name), shared[1][0].to(name))

    def work(worker: Worker) -> None:
        try:
            while time.monotonic() < end and not errors and worker.steps < steps:
                worker.step()
            for x, y in worker.pairs:
                assert torch.equal(x.cpu(), y), (x.cpu(), y)
        except BaseException:
            errors.append(f"step {worker.steps} of a thread on {worker.device}\n{traceback.format_exc()}")

    running = [threading.Thread(target=work, args=(worker,)) for worker in workers]
    sys.setswitchinterval(1e-5)
    try:
        with interpreted(not compiles):
            for thread in running:
                thread.start()
            for thread in running:
                thread.join()
            lazy_runtime.sync(wait=True)
    finally:
        sys.setswitchinterval(switch)
        experimental.eager_mode(False)
    for x, y in shared:
        assert torch.equal(x.cpu(), y), (x.cpu(), y)
    assert not errors, f"mode {mode}, seed {seed}, {devices} devices:\n" + "\n".join(errors)
    return sum(worker.steps for worker in workers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=MODES, action="append")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--devices", type=int, action="append")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    end, seed = time.monotonic() + given.seconds, given.seed
    while time.monotonic() < end:
        for mode in given.mode or MODES:
            for devices in given.devices or (1, len(xla_devices.devices())):
                for compiles in (False, True):
                    steps = run(mode, 2 if compiles else 8, seed, given.threads, devices, compiles=compiles)
                    print(f"{mode}, {devices} devices, seed {seed}: {steps} steps, nothing lost", flush=True)
                    seed += 1


if __name__ == "__main__":
    main()
