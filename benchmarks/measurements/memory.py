"""Device memory of a training step, by XLA's own figures: ours, and one that was written in jax by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import torch
from tabulate import tabulate
from torch.nn.functional import cross_entropy

import lazy_runtime
from lazy_runtime import debug

from .. import models
from . import by_hand
from .decoder_only import Config, DecoderOnlyModel

FORMS = ("lazy", "openxla", "openxla_step")

#: What ours may take of what jax takes.
MOST = 1.1


class Case(NamedTuple):
    """A model with its optimizer.

    Attributes:
        model, optimizer: make them.
        batch: makes the inputs and the targets.
        loss: (output, targets) → loss.
        by_hand: the same step in jax.
    """

    model: Callable[[], torch.nn.Module]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    batch: Callable[[], tuple[torch.Tensor, torch.Tensor]]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    by_hand: Callable[[], by_hand.Step]


def _tokens() -> torch.Tensor:
    return torch.randint(0, Config().vocabulary, (4, 128))


CASES = {
    "decoder-only, AdamW": Case(
        lambda: DecoderOnlyModel(Config()),
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        lambda: (_tokens(), _tokens()),
        lambda output, targets: cross_entropy(output.flatten(0, 1), targets.flatten()),
        lambda: by_hand.decoder_only(4, 128),
    ),
    "resnet50, SGD": Case(
        lambda: models.build("resnet50").train(),
        lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
        lambda: (models.example("resnet50", 4)[0], torch.randint(0, 1000, (4,))),
        cross_entropy,
        lambda: by_hand.resnet50(4, 224),
    ),
}


def bytes_of(case: Case, form: str) -> int:
    """Bytes that the program of a step takes, its arguments and results included, after the optimizer's state is made.

    Args:
        form: one of `FORMS`.
    """
    model = case.model().to("xla")
    optimizer = case.optimizer(model.parameters())
    call = torch.compile(model, backend="openxla") if form == "openxla" else model

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        optimizer.zero_grad()
        case.loss(call(inputs), targets).backward()
        optimizer.step()

    if form == "openxla_step":
        step = torch.compile(step, backend="openxla")
    known = len(debug.compilations())
    inputs, targets = (tensor.to("xla") for tensor in case.batch())
    for _ in range(2):
        step(inputs, targets)
        lazy_runtime.sync(wait=True)
    torch.compiler.reset()
    last = debug.compilations()[-1]
    if len(debug.compilations()) == known or last.cost is None:
        raise RuntimeError("nothing was compiled, or XLA gives no figures on this platform")
    return last.cost.peak


def bytes_by_hand(case: Case) -> int:
    """Bytes that jax's program takes."""
    found: Any = case.by_hand().compile().memory_analysis()
    return (
        found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes + found.temp_size_in_bytes
    )


def table() -> str:
    """Megabytes of each step, and their ratio."""
    rows = []
    for name, case in CASES.items():
        theirs = bytes_by_hand(case)
        for form in FORMS:
            ours = bytes_of(case, form)
            ratio = ours / theirs
            rows.append([name, form, ours / 1e6, theirs / 1e6, ratio, "met" if ratio <= MOST else "missed"])
    headers = ["step", "form", "MB", "jax by hand, MB", "ratio", f"at most {MOST}"]
    title = f"### Device memory of a training step on {jax.devices()[0].device_kind}"
    return f"{title}\n\n{tabulate(rows, headers=headers, tablefmt='github', floatfmt=('', '', '.1f', '.1f', '.2f'))}"
