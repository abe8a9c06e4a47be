"""The ways to run a model that are compared: where it lives, and who compiles it."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import torch

import lazy_runtime
from lazy_runtime.tensor.xla_tensor import values_of


class Mode(NamedTuple):
    """A way to run a model.

    Attributes:
        device: where the model and its inputs live.
        backend: what `torch.compile` gets; None leaves the model uncompiled.
        memory_format: of the weights and images.
        whole_step: `torch.compile` gets the function of a whole training step in place of the model.
        tests: those that the mode has something to run in.
        freezing: Inductor takes the parameters for constants, and times its choices.
        needs: a package that the mode is left out without.
        elsewhere: it runs in a process of another environment, where torch_xla is installed.
        autocast: to bfloat16.
        graphs: Inductor replays CUDA graphs.
        by_hand: it runs what `in_jax` has, which is not every model.
    """

    device: str = "cpu"
    backend: str | Callable[..., Any] | None = None
    memory_format: torch.memory_format = torch.contiguous_format
    whole_step: bool = False
    tests: Sequence[str] = ("inference", "training", "step")
    freezing: bool = False
    needs: str | None = None
    elsewhere: bool = False
    autocast: bool = False
    graphs: bool = False
    by_hand: bool = False


#: Without whole steps, in which bfloat16's rounding would be all that there is to see.
_PASSES = ("inference", "training")

MODES: dict[str, Mode] = {
    "eager": Mode(),
    "eager_channels_last": Mode(memory_format=torch.channels_last),
    "inductor": Mode(backend="inductor"),
    "inductor_freezing": Mode(backend="inductor", freezing=True, tests=["inference"]),
    "openvino": Mode(backend="openvino", needs="openvino", tests=["inference"]),
    "torch_xla": Mode(device="elsewhere", backend="openxla", elsewhere=True),
    "torch_xla_lazy": Mode(device="elsewhere", elsewhere=True),
    "jax": Mode(device="jax", by_hand=True, tests=["inference", "training"]),
    "lazy": Mode(device="xla"),
    "openxla": Mode(device="xla", backend="openxla"),
    "openxla_step": Mode(device="xla", backend="openxla", whole_step=True, tests=["step"]),
    "eager_bfloat16": Mode(tests=["inference"], autocast=True),
    "inductor_bfloat16": Mode(backend="inductor", tests=["inference"], autocast=True),
    "openxla_bfloat16": Mode(device="xla", backend="openxla", tests=_PASSES, autocast=True),
    "cuda": Mode(device="cuda"),
    "cuda_inductor": Mode(device="cuda", backend="inductor"),
    "cuda_graphs": Mode(device="cuda", backend="inductor", graphs=True),
    "cuda_openxla": Mode(device="cuda", backend="openxla"),
    "cuda_bfloat16": Mode(device="cuda", tests=_PASSES, autocast=True),
    "cuda_graphs_bfloat16": Mode(device="cuda", backend="inductor", tests=_PASSES, autocast=True, graphs=True),
}

#: Those that compute the same, by as many bits: what `compare` compares.
FLOAT32 = tuple(name for name, mode in MODES.items() if not mode.autocast)

TESTS = ("inference", "training", "step")  # training: one forward and one backward pass, no optimizer

#: How long after a run threads of OpenMP's spin, so that the next would share its cores with them: 14 ms on some
#: processors.
SPIN_S = 0.02

#: How long the workers of the thread are there that xla's programs call torch's kernels in (`kernel_thread.h`). While
#: they are, OpenMP has more threads than cores, and those of all others go to sleep wherever they wait.
WORKERS_S = 0.12

#: This package's own; all others are what a user could pick in their place.
OURS = ("lazy", "openxla", "openxla_step", "cuda_openxla")


def available(names: Sequence[str], torch_xla: str | None = None) -> list[str]:
    """Those modes that can be run here.

    Args:
        torch_xla: an interpreter of an environment with torch_xla.
    """
    return [
        name
        for name in names
        if (MODES[name].needs is None or importlib.util.find_spec(MODES[name].needs or "") is not None)
        and (MODES[name].device != "cuda" or torch.cuda.is_available())
        and (torch_xla is not None or not MODES[name].elsewhere)
    ]


def compiled(function: Callable[..., Any], mode: Mode) -> Callable[..., Any]:
    """A function as a mode's compiler makes it; uncompiled where it has none."""
    if mode.backend is None:
        return function
    if mode.freezing:
        return _Freezing(function)
    if mode.needs == "openvino":
        importlib.import_module("openvino.torch")  # registers the backend
    return torch.compile(function, backend=mode.backend, mode="reduce-overhead" if mode.graphs else None)


class _Freezing:
    """Inductor at its best in inference: parameters frozen, which Dynamo asks of a global flag while it traces, and the
    mode max-autotune-no-cudagraphs.
    """

    def __init__(self, function: Callable[..., Any]):
        self._compiled = torch.compile(function, backend="inductor", mode="max-autotune-no-cudagraphs")
        self._traced = False

    def __call__(self, *inputs: torch.Tensor) -> Any:
        if self._traced:
            return self._compiled(*inputs)
        from torch._inductor import config

        with config.patch(freezing=True):
            results = self._compiled(*inputs)
        self._traced = True
        return results


class Program:
    """A copy of a model in one mode, ready to be run again and again.

    Args:
        model: in train mode for training, in eval mode for inference; it is left as it is.
        inputs: on the CPU.

    Raises:
        ValueError: the mode compiles whole steps, and this is none.
    """

    #: What the last round took by its own clock, where that is not this process's.
    taken_s: float | None = None

    def __init__(self, mode: Mode, model: torch.nn.Module, inputs: Sequence[torch.Tensor]):
        self.mode = mode
        self.model = copy.deepcopy(model).to(device=mode.device)
        self.model.to(memory_format=mode.memory_format)  # pyright: ignore[reportCallIssue]  (torch's stubs lack it)
        self.inputs = [_place(tensor, mode) for tensor in inputs]
        self.call = self._compile()
        self.rest_s = _rest_s(mode)
        self._results: list[torch.Tensor] = []
        self.wait()  # transfers are not a part of the first run's time

    def _compile(self) -> Callable[..., Any]:
        """The model as it is called."""
        if self.mode.whole_step:
            raise ValueError("this mode compiles the function of a whole step: it has no other")
        compile_parts = getattr(self.model, "compile_parts", None)
        if compile_parts is None:
            return compiled(self.model, self.mode)
        compile_parts(functools.partial(compiled, mode=self.mode))
        return self.model

    def run(self) -> None:
        """One run, from the call to the completion of all its results."""
        self.start()
        self.wait()

    def round(self) -> Sequence[float]:
        """What is timed at once; returns the seconds until each of its steps returned, if it consists of steps."""
        self.run()
        return ()

    def rehearse(self) -> None:
        """What is done ahead of a brief round, and not timed."""
        self.round()

    def start(self) -> None:
        """One run as the user's thread sees it: the results are pending or under way on an asynchronous device."""
        if self.mode.graphs:
            self._results = []
            torch.compiler.cudagraph_mark_step_begin()  # the last run's results are overwritten
        if self.model.training:
            with self._autocast():
                loss = self.call(*self.inputs).square().mean()
            loss.backward()
            gradients = [parameter.grad for parameter in self.model.parameters()]
            self._results = [tensor for tensor in (loss, *gradients) if tensor is not None]
        else:
            with torch.no_grad(), self._autocast():
                self._results = [self.call(*self.inputs)]

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.mode.device, torch.bfloat16) if self.mode.autocast else contextlib.nullcontext()

    def wait(self) -> None:
        """Returns when everything that was started is complete."""
        if self.mode.device == "cuda":
            torch.cuda.synchronize()
        if self.mode.device != "xla":
            return
        lazy_runtime.sync(wait=True)
        # not taken on trust, or a mode that did not wait would look fast
        jax.block_until_ready([value.array for value in values_of(self._results)])

    def first_step_again(self) -> None:
        """For steps: one from where the first began. All others begin there anyway."""

    def clear(self) -> None:
        """Forgets the results of the last run, gradients included."""
        self._results = []
        self.model.zero_grad(set_to_none=True)

    def results(self) -> dict[str, torch.Tensor]:
        """The last run's outputs (inference) or gradients (training) on the CPU, by name."""
        if self.mode.graphs:  # those of the last run are gone where another program has replayed a graph since
            self.clear()
            self.run()
        if not self.model.training:
            return {f"output {i}": tensor.cpu() for i, tensor in enumerate(self._results)}
        named = self.model.named_parameters()
        return {name: parameter.grad.cpu() for name, parameter in named if parameter.grad is not None}


def _rest_s(mode: Mode) -> float:
    """How long a program's threads on the CPU keep its cores from those of the next."""
    if mode.device == "cuda":
        return 0.0
    if mode.device == "xla":
        return WORKERS_S if lazy_runtime.real_devices()[0].startswith("CPU") else 0.0
    return SPIN_S


def _place(tensor: torch.Tensor, mode: Mode) -> torch.Tensor:
    if tensor.dim() == 4:
        return tensor.to(device=mode.device, memory_format=mode.memory_format)
    return tensor.to(device=mode.device)


def warm_up(names: Sequence[str], kind: type[Program] = Program) -> None:
    """Brings up what a process needs only once (devices, Dynamo, compilers), so that no first call pays for it.

    xla comes first: once torch's threads on the CPU have made heaps of their own, XLA's threads may end up with one of
    those, which gives large blocks back to the system at each execution (docs/performance.md).
    """
    for name in sorted(names, key=lambda name: MODES[name].device != "xla"):
        with contextlib.suppress(Exception):  # a mode that does not work says so at its first call
            kind(MODES[name], torch.nn.Linear(2, 2), [torch.zeros(1, 2)]).run()
    # else Dynamo takes sizes that differ in the first real call of the same code for symbols, which it traces slowly
    torch.compiler.reset()
