"""A program that is interrupted at random moments, goes on, and compares with the CPU: `interrupted.py SEED MOMENTS`.
With `forever` behind them it trains without catching anything, until it is interrupted.

An alarm of the system sends SIGINT, which is what Ctrl-C sends. After each one, what was interrupted is done again, and
nothing that came before may be lost.
"""

from __future__ import annotations

import random
import signal
import sys
import time

import torch

import lazy_runtime

Tensors = list[torch.Tensor]


def network(number: int) -> torch.nn.Module:
    """Another program for each number."""
    torch.manual_seed(number)
    width = 4 + number
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, width, 3), torch.nn.ReLU(), torch.nn.Conv2d(width, 4, 3), torch.nn.GELU(), torch.nn.Flatten()
    ).double()


def images() -> torch.Tensor:
    return torch.linspace(-1, 1, 2 * 3 * 9 * 9, dtype=torch.float64).reshape(2, 3, 9, 9)


def gradients(model: torch.nn.Module, run: torch.nn.Module, x: torch.Tensor) -> Tensors:
    loss = run(x).square().mean()
    loss.backward()
    return [loss.detach().cpu(), *[p.grad.cpu() for p in model.parameters() if p.grad is not None]]


def train(number: int, device: str, compiled: bool) -> Tensors:
    model = network(number).to(device)
    return gradients(model, torch.compile(model, backend="openxla") if compiled else model, images().to(device))


def eager(number: int) -> Tensors:
    lazy_runtime.experimental.eager_mode(True)
    try:
        x = torch.arange(4.0 + number).to("xla")
        return [(x.sin() * 2).cpu(), x.cumsum(0).cpu()]
    finally:
        lazy_runtime.experimental.eager_mode(False)


def transfers(number: int) -> Tensors:
    return [torch.arange(1000.0 + i).to("xla").cpu() for i in range(200)]


class Steps:
    """A sum whose buffer each step donates to the next. Nothing of it may be lost."""

    def __init__(self) -> None:
        self.total = torch.zeros(300, 300, device="xla")
        self.begun = self.ended = 0

    def __call__(self, number: int) -> Tensors:
        for _ in range(300):
            self.begun += 1
            self.total += 1
            lazy_runtime.sync()
            self.ended += 1
        return []

    def check(self) -> None:
        found = {round(value) for value in self.total.unique().tolist()}
        assert len(found) == 1, found
        (count,) = found
        assert self.ended <= count <= self.begun, (self.ended, count, self.begun)
        self.begun = self.ended = count


def main(seed: int, moments: int) -> None:
    moment = random.Random(seed)
    steps = Steps()
    activities = {
        "lazy": (lambda n: train(n, "xla", False), lambda n: train(n, "cpu", False)),
        "compiled": (lambda n: train(n, "xla", True), lambda n: train(n, "cpu", False)),
        "compiled on the CPU": (lambda n: train(n, "cpu", True), lambda n: train(n, "cpu", False)),
        "steps": (steps, lambda n: []),
        "eager": (eager, lambda n: [(torch.arange(4.0 + n).sin() * 2), torch.arange(4.0 + n).cumsum(0)]),
        "transfers": (transfers, lambda n: [torch.arange(1000.0 + i) for i in range(200)]),
    }
    took = {}
    for name, (function, _) in activities.items():  # torch's own imports, which an interrupt would break
        began = time.perf_counter()
        function(1)
        took[name] = time.perf_counter() - began
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    interrupted = 0
    for number in range(moments):
        torch._dynamo.reset()
        name = list(activities)[number % len(activities)]
        function, expected = activities[name]
        found = None
        began = time.perf_counter()
        try:
            signal.setitimer(signal.ITIMER_REAL, moment.uniform(0.0005, took[name]))
            found = function(2 + number)
            signal.setitimer(signal.ITIMER_REAL, 0)
            took[name] = (took[name] + time.perf_counter() - began) / 2
        except KeyboardInterrupt:
            interrupted += 1
        steps.check()
        for each in (found, function(2 + number)):
            if each is not None:
                torch.testing.assert_close(each, expected(2 + number), rtol=1e-5, atol=1e-6)
        steps.check()
        print(number, name, found is None, flush=True)
    print("interrupted", interrupted, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job starts with SIGINT ignored
    if sys.argv[3:] == ["forever"]:
        print("ready", flush=True)
        for number in range(1000):
            train(number, "xla", compiled=number % 2 == 1)
    main(int(sys.argv[1]), int(sys.argv[2]))
