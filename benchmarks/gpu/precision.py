"""The modes that are compared on a GPU, in TF32 and in bfloat16, and those of the CPU that stand for them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch

from ..modes import MODES, Mode, Program
from ..training_step import Step
from ..worker import Request

PRECISIONS = ("tf32", "bfloat16")
TESTS = ("inference", "step")

#: The columns of the tables, in their order.
ROLES = ("eager", "inductor", "graphs", "openxla", "openxla_tensors", "openxla_step")

#: Those of this package.
OURS = ("openxla", "openxla_tensors", "openxla_step")

#: Modes that other commands have no use for: bfloat16 in whole steps, and what stands for a GPU where there is none.
_MODES = {
    "cuda_inductor_bfloat16": Mode(device="cuda", backend="inductor", tests=TESTS, autocast=True),
    "cuda_openxla_bfloat16": Mode(device="cuda", backend="openxla", tests=TESTS, autocast=True),
    "openxla_step_bfloat16": Mode(device="xla", backend="openxla", whole_step=True, tests=["step"], autocast=True),
    "cpu_graphs": Mode(backend="inductor", graphs=True),
    "cpu_graphs_bfloat16": Mode(backend="inductor", graphs=True, tests=TESTS, autocast=True),
    "cpu_openxla": Mode(backend="openxla"),
    "cpu_openxla_bfloat16": Mode(backend="openxla", tests=TESTS, autocast=True),
}


@contextlib.contextmanager
def registered() -> Iterator[None]:
    """Adds these modes to those of all commands, and takes them off again: each process of the program enters it."""
    MODES.update(_MODES)
    try:
        yield
    finally:
        for name in _MODES:
            MODES.pop(name, None)


#: Of a GPU: precision → role → mode.
GPU_MODES: dict[str, dict[str, str]] = {
    "tf32": {
        "eager": "cuda",
        "inductor": "cuda_inductor",
        "graphs": "cuda_graphs",
        "openxla": "openxla",
        "openxla_tensors": "cuda_openxla",
        "openxla_step": "openxla_step",
    },
    "bfloat16": {
        "eager": "cuda_bfloat16",
        "inductor": "cuda_inductor_bfloat16",
        "graphs": "cuda_graphs_bfloat16",
        "openxla": "openxla_bfloat16",
        "openxla_tensors": "cuda_openxla_bfloat16",
        "openxla_step": "openxla_step_bfloat16",
    },
}

#: What stands for them in a dry run.
DRY_MODES: dict[str, dict[str, str]] = {
    "tf32": {
        "eager": "eager",
        "inductor": "inductor",
        "graphs": "cpu_graphs",
        "openxla": "openxla",
        "openxla_tensors": "cpu_openxla",
        "openxla_step": "openxla_step",
    },
    "bfloat16": {
        "eager": "eager_bfloat16",
        "inductor": "inductor_bfloat16",
        "graphs": "cpu_graphs_bfloat16",
        "openxla": "openxla_bfloat16",
        "openxla_tensors": "cpu_openxla_bfloat16",
        "openxla_step": "openxla_step_bfloat16",
    },
}


def roles(precision: str, test: str, wanted: Sequence[str] = ROLES, dry: bool = False) -> dict[str, str]:
    """Role → mode of those that have something to run in a test."""
    found = (DRY_MODES if dry else GPU_MODES)[precision]
    return {role: found[role] for role in ROLES if role in wanted and (role != "openxla_step" or test == "step")}


class AutocastStep(Step):
    """A training step whose forward pass is under `torch.autocast` where the mode says so."""

    def _whole(self, *inputs: torch.Tensor) -> torch.Tensor:
        with self._autocast():
            loss = self.call(*inputs).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


class DeviceRequest(Request):
    """A model in the modes of one precision: all of them in each test, whole steps in bfloat16 too."""

    __slots__ = ()

    def modes_of(self, test: str) -> list[str]:
        """The modes that have something to run in a test."""
        return [mode for mode in self.modes if test == "step" or not MODES[mode].whole_step]

    def peer(self, mode: str) -> str | None:
        """Eager in the same precision, which is not asked for more bits than it gives either."""
        if MODES[mode].autocast and not self.on_gpu:
            return "eager_bfloat16"
        return super().peer(mode)

    def program(self, test: str, mode: str, model: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> Program:
        """What runs a model in a mode."""
        if test == "step" and MODES[mode].autocast:
            return AutocastStep(MODES[mode], model, inputs, self.loop)
        return super().program(test, mode, model, inputs)

    @property
    def precision(self) -> str:
        """Its name."""
        return "bfloat16" if any(MODES[mode].autocast for mode in self.modes) else "tf32"

    @property
    def title(self) -> str:
        """The model, the test and the precision."""
        return f"{self.model} {self.tests[0]} {self.precision}"
