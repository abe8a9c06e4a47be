"""How much is measured: on a GPU, and in a dry run on the CPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..models import COMPARED, IMAGE_SIZE
from .precision import ROLES, DeviceRequest, roles

#: Small and important ones, which come first in all tests.
FIRST = ("resnet18", "resnet50", "BERT_pytorch", "timm_vision_transformer", "llama")

#: Test and precision, in the order of the tables.
PASSES = (("inference", "tf32"), ("step", "tf32"), ("inference", "bfloat16"), ("step", "bfloat16"))


class Settings(NamedTuple):
    """The program's size.

    Attributes:
        dry: the CPU stands for the GPU.
        minutes: of the whole program.
        output: folder of the results.
        passes: tests and precisions, in their order.
        roles: of the modes.
        workers: models that are prepared at once.
        batch_size: the models' own if None.
        rounds: the most that are timed.
        profiles: models whose kernels are listed.
        profile_s: the estimate of one list.
        prepare_s, time_s: the first estimates of a wave's preparation and of a model's timing.
        most_prepare_s, step_s: limits of a wave's preparation, and of a model without progress.
        timing_s: for the rounds of a model's modes together.
        build_s, part_s: limits of the build of the C++ part, and of other parts.
        matrix, copied_mib, rate_rounds: of the products and copies that are the roofline.
    """

    dry: bool
    minutes: float
    output: Path
    models: Sequence[str]
    passes: Sequence[tuple[str, str]] = PASSES
    roles: Sequence[str] = ROLES
    workers: int = 8
    batch_size: int | None = None
    image_size: int = IMAGE_SIZE
    rounds: int = 15
    profiles: int = 2
    profile_s: float = 20.0
    prepare_s: float = 110.0
    time_s: float = 6.0
    most_prepare_s: float = 170.0
    step_s: float = 120.0
    timing_s: float = 2.5
    build_s: float = 240.0
    part_s: float = 75.0
    matrix: int = 8192
    copied_mib: int = 2048
    rate_rounds: int = 5

    @property
    def device(self) -> str:
        """Of torch's own tensors."""
        return "cpu" if self.dry else "cuda"

    @property
    def platform(self) -> str:
        """Of the xla device."""
        return "CPU" if self.dry else "CUDA"

    @property
    def threads(self) -> int:
        """Of each process, where as many run as there are workers."""
        return max(1, (os.cpu_count() or 1) // self.workers)

    def requests(self) -> list[DeviceRequest]:
        """What is measured, the most important first."""
        first = [model for model in FIRST if model in self.models]
        rest = [model for model in self.models if model not in FIRST]
        return [
            self.request(model, test, precision)
            for group in (first, rest)
            for test, precision in self.passes
            for model in group
        ]

    def request(self, model: str, test: str, precision: str) -> DeviceRequest:
        """One model in one test."""
        return DeviceRequest(
            model,
            tests=[test],
            modes=list(roles(precision, test, self.roles, self.dry).values()),
            batch_size=self.batch_size,
            image_size=self.image_size,
            rounds=self.rounds,
            tf32=precision == "tf32" and not self.dry,
            together=True,
        )


def on_gpu(minutes: float, output: Path) -> Settings:
    """All models on a GPU."""
    workers = max(1, min(8, (os.cpu_count() or 1) // 2))
    return Settings(dry=False, minutes=minutes, output=output, models=list(COMPARED), workers=workers)


def dry(minutes: float, output: Path) -> Settings:
    """The same program on the CPU, with tiny models and few rounds."""
    return Settings(
        dry=True,
        minutes=minutes,
        output=output,
        models=["squeezenet1_1"],
        passes=[("step", "tf32"), ("inference", "bfloat16")],
        workers=2,
        batch_size=1,
        image_size=32,
        rounds=3,
        profiles=1,
        prepare_s=30.0,
        time_s=3.0,
        timing_s=0.2,
        matrix=256,
        copied_mib=8,
        rate_rounds=2,
    )


#: What a dry run has in place of a GPU.
REPLACED = (
    "the device: the CPU, for torch and for XLA (PJRT_DEVICE=CPU)",
    "the modes: those of the CPU. `cpu_graphs` asks Inductor for CUDA graphs, of which the CPU has none",
    "TF32: float32, since the CPU has no TF32",
    "the GPU's name, driver and memory: nothing",
    "the models and passes: few, with tiny inputs and few rounds, so that no time means anything",
    "the GPU's kernels in profiles: what XLA and torch run on the CPU",
)
