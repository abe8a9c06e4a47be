"""Host time of a training step: how long the user's thread is busy before it can prepare the next one."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import torch
from tabulate import tabulate
from tqdm import tqdm

import lazy_runtime
from lazy_runtime.tensor.xla_tensor import unwrap

from .. import counters, measure, models
from .decoder_only import Config, DecoderOnlyModel

#: What a step that is compiled as a whole may take of the time of one that is recorded.
MOST = 0.1

FORMS = {
    "lazy": "recorded",
    "openxla_step": "torch.compile(step)",
    "compile": "lazy_runtime.compile(step)",
    "openxla_step in compile": "lazy_runtime.compile(torch.compile(step))",
}

#: Steps before any is timed: the optimizer makes its state in the first, and Dynamo compiles again for it.
SETTLING = 5


class Case(NamedTuple):
    """A model with its optimizer.

    Attributes:
        model: makes it.
        inputs: makes its inputs.
        optimizer: makes it for parameters.
    """

    model: Callable[[], torch.nn.Module]
    inputs: Callable[[], Sequence[torch.Tensor]]
    optimizer: Callable[[Any], torch.optim.Optimizer]


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)


def _adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4)


def _decoder(layers: int) -> Callable[[], torch.nn.Module]:
    """So small that the host's time is all there is."""
    return lambda: DecoderOnlyModel(Config(64, layers, 4, 2, 128, 100))


def _image(model: str, optimizer: Callable[[Any], torch.optim.Optimizer]) -> Case:
    # two images: batch norm has no statistics of one element
    return Case(lambda: models.build(model).train(), lambda: models.example(model, 2, 32), optimizer)


def _tokens(layers: int, optimizer: Callable[[Any], torch.optim.Optimizer]) -> Case:
    return Case(_decoder(layers), lambda: [torch.randint(0, 100, (2, 8))], optimizer)


#: By name; the number is that of the decoder-only model's layers.
CASES = {
    "decoder2_sgd": _tokens(2, _sgd),
    "decoder2_adamw": _tokens(2, _adamw),
    "decoder8_adamw": _tokens(8, _adamw),
    "resnet18_sgd": _image("resnet18", _sgd),
    "resnet50_sgd": _image("resnet50", _sgd),
}


class Step:
    """A training step in one form, with a model and an optimizer of its own."""

    def __init__(self, form: str, case: Case):
        torch.manual_seed(0)
        self.form = form
        self.model = case.model().to("xla")
        self.inputs = [tensor.to("xla") for tensor in case.inputs()]
        self.optimizer = case.optimizer(self.model.parameters())
        self.call = self._compile()

    def _compile(self) -> Callable[..., torch.Tensor]:
        """The step as it is called."""

        def step(*inputs: torch.Tensor) -> torch.Tensor:
            loss = self.model(*inputs).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            return loss

        # Dynamo keeps what it has compiled with the code, and would go through the other forms' to find this one's
        step.__code__ = step.__code__.replace()
        call: Callable[..., torch.Tensor] = step
        if "openxla_step" in self.form:
            call = torch.compile(step, backend="openxla")
        return lazy_runtime.compile(call, trace_after=0) if "compile" in self.form else call

    def run(self) -> float:
        """One step that is waited for; the milliseconds until control returned."""
        taken = measure.seconds(self._start)
        lazy_runtime.sync(wait=True)
        jax.block_until_ready([unwrap(parameter).handle.value.array for parameter in self.model.parameters()])
        return 1e3 * taken

    def _start(self) -> None:
        self.call(*self.inputs)
        if self.form == "lazy":
            lazy_runtime.sync()


def host_times(case: Case, steps: int) -> dict[str, list[float]]:
    """Milliseconds until a step returns, by form, step by step: they take turns, so that noise falls on all alike.

    Raises:
        RuntimeError: a step was compiled, or was not one execution.
    """
    # Dynamo compiles an optimizer's step for each optimizer, and after eight of them (`recompile_limit`) no more
    torch.compiler.reset()
    forms = {form: Step(form, case) for form in FORMS}
    series: dict[str, list[float]] = {form: [] for form in forms}
    for step in forms.values():
        for _ in range(SETTLING):
            step.run()
    for _ in tqdm(range(steps), unit="step", dynamic_ncols=True, disable=None):
        for form, step in forms.items():
            before = _work()
            series[form].append(step.run())
            if _work() != (before[0] + 1, before[1]):
                raise RuntimeError(f"a step of the form {form} compiled, or was not one execution")
    return series


def _work() -> tuple[int, int]:
    return counters.value("ExecuteComputation"), counters.value("UncachedCompile")


def rows(name: str, series: dict[str, list[float]]) -> list[list[Any]]:
    """One row of the table for each form."""
    found = []
    for form, times in series.items():
        ratio = statistics.median(mine / lazy for mine, lazy in zip(times, series["lazy"], strict=True))
        judged = "" if form == "lazy" else "met" if ratio <= MOST else "missed"
        summary = measure.summarize(times)
        figures = [round(summary.median, 2), round(summary.fastest, 2), round(ratio, 3)]
        found.append([name, FORMS[form], *figures, judged])
    return found


def table(steps: int, names: Sequence[str]) -> str:
    """The host times of these cases beside their bound.

    Args:
        steps: how many of each form are timed.
    """
    body = [row for name in names for row in rows(name, host_times(CASES[name], steps))]
    headers = ["training step", "form", "median ms", "fastest", "ratio to recorded", f"bound {MOST}"]
    title = "### Host time of a training step: until it returns, execution not waited for"
    return f"{title}\n\n{tabulate(body, headers=headers, tablefmt='github')}"
