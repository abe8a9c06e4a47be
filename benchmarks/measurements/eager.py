"""Training steps by tracing, eagerly, and eagerly with the step compiled: PyTorch/XLA's table of its eager mode."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from tabulate import tabulate
from tqdm import tqdm

import lazy_runtime

from .. import counters, measure, models
from . import decoder_only

BATCH_SIZE, LENGTH = 4, 128
BLOCK = 5  # steps between two looks at the clock; a mode's turn
MODES = ("tracing", "eager", "eager + compile")
MODELS = ("decoder-only", "resnet50")

#: The least that a mode's speed should be, as a share of tracing's; PyTorch/XLA's own, from its documentation.
BOUNDS = {("decoder-only", "eager"): 0.45, ("decoder-only", "eager + compile"): 0.98, ("resnet50", "eager"): 0.5}
PYTORCH_XLA = {("decoder-only", "eager"): 0.45, ("decoder-only", "eager + compile"): 1.0, ("resnet50", "eager"): 0.01}


class Problem(NamedTuple):
    """What is trained.

    Attributes:
        model: on the CPU; each mode gets a copy.
        inputs, targets: of one step, on the CPU; int64 targets of a cross entropy over the last dimension.
        optimizer: parameters → optimizer.
        items: how many tokens or images a step takes.
        unit: their name.
    """

    model: torch.nn.Module
    inputs: torch.Tensor
    targets: torch.Tensor
    optimizer: Callable[..., torch.optim.Optimizer]
    items: int
    unit: str


def problem(name: str) -> Problem:
    """The named problem; weights and data depend on nothing but the name."""
    torch.manual_seed(0)
    if name == "decoder-only":
        config = decoder_only.Config()
        tokens = torch.randint(config.vocabulary, (2, BATCH_SIZE, LENGTH))
        model = decoder_only.DecoderOnlyModel(config)
        return Problem(model, tokens[0], tokens[1], torch.optim.AdamW, BATCH_SIZE * LENGTH, "tokens")
    images = models.example(name, BATCH_SIZE)[0]

    def sgd(parameters: object) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, weight_decay=1e-4)  # type: ignore[arg-type]

    return Problem(models.build(name), images, torch.randint(1000, (BATCH_SIZE,)), sgd, BATCH_SIZE, "images")


class Trainer:
    """One mode's copy of a problem."""

    def __init__(self, task: Problem, mode: str):
        self.mode = mode
        self._model = copy.deepcopy(task.model).to("xla").train()
        self._inputs, self._targets = task.inputs.to("xla"), task.targets.to("xla")
        self._optimizer = task.optimizer(self._model.parameters())
        lazy_runtime.sync(wait=True)
        self._run = lazy_runtime.compile(self._step, full_graph=True) if mode == "eager + compile" else self._step
        self.losses: list[torch.Tensor] = []  # of the first block

    def _step(self) -> torch.Tensor:
        self._optimizer.zero_grad()
        logits = self._model(self._inputs)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), self._targets.flatten())
        loss.backward()
        self._optimizer.step()
        return loss

    def steps(self, count: int) -> float:
        """Seconds of so many steps, to the completion of the last."""
        with lazy_runtime.experimental.eager_mode_context(self.mode != "tracing"):

            def run() -> None:
                for _ in range(count):
                    loss = self._run()
                    if len(self.losses) < BLOCK:
                        self.losses.append(loss.detach())
                    if self.mode == "tracing":
                        lazy_runtime.sync()
                lazy_runtime.sync(wait=True)

            return measure.seconds(run)


class Rates(NamedTuple):
    """Tokens or images per second of one mode, and their share of tracing's in the same round."""

    rate: measure.Summary
    share: measure.Summary


def rates(name: str, steps: int) -> tuple[str, dict[str, Rates]]:
    """The unit, and the rates of each mode over blocks of steps that the modes take in turn.

    Raises:
        RuntimeError: the modes' losses differ, or something was compiled after the first block.
    """
    task = problem(name)
    trainers = [Trainer(task, mode) for mode in MODES]
    series: dict[str, list[float]] = {mode: [] for mode in MODES}
    compiled = 0
    for block in tqdm(range(-1, max(1, steps // BLOCK)), desc=name, unit="block", dynamic_ncols=True, disable=None):
        if block == 0:
            compiled = counters.value("UncachedCompile")
        for trainer in trainers[block % 3 :] + trainers[: block % 3]:
            taken = trainer.steps(BLOCK)
            if block >= 0:
                series[trainer.mode].append(BLOCK * task.items / taken)
    if counters.value("UncachedCompile") != compiled:
        raise RuntimeError(f"{name}: a step after the first ones compiled, its times mean nothing")
    # Rounding differs, and batch norms over few images amplify it from step to step; two losses show the first forward
    # pass, and the first backward pass and update.
    losses = torch.tensor([[loss.item() for loss in trainer.losses[:2]] for trainer in trainers])
    if not torch.allclose(losses, losses[0], rtol=1e-3):
        raise RuntimeError(f"{name}: the losses of {', '.join(MODES)} differ: {losses.tolist()}")
    found = {}
    for mode, each in series.items():
        shares = [rate / tracing for rate, tracing in zip(each, series["tracing"], strict=True)]
        found[mode] = Rates(measure.summarize(each), measure.summarize(shares))
    return task.unit, found


def table(name: str, unit: str, found: dict[str, Rates]) -> str:
    """The rates beside their bounds."""
    body = []
    for mode, (rate, share) in found.items():
        bound = BOUNDS.get((name, mode))
        met = "" if bound is None else "met" if share.median >= bound else "missed"
        theirs = PYTORCH_XLA.get((name, mode))
        body.append([mode, rate.median, rate.spread, share.median, share.spread, bound, met, theirs])
    spread = "interquartile range"
    headers = ["mode", f"{unit}/s", spread, "share of tracing", spread, "bound", "", "PyTorch/XLA's share"]
    formats = ("", ".1f", ".1f", ".3f", ".3f", "", "", "")
    return f"### Training {name}\n\n" + tabulate(body, headers=headers, tablefmt="github", floatfmt=formats)
