"""What stands behind a compiled call: an FX graph that is traced and compiled once per set of sizes, then only run."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lazy_runtime.common import config, metrics
from lazy_runtime.common.errors import DataDependentError
from lazy_runtime.compat.torch import disable_current_modes, tree_leaves
from lazy_runtime.compilation import compiler, programs
from lazy_runtime.compilation.plan import CompilePlan
from lazy_runtime.debug import compiling
from lazy_runtime.platform import xla_devices
from lazy_runtime.regions import compiling as regions

from .execution import interpreted
from .execution.device import DeviceRun
from .execution.host import HostRun
from .graph import auto_functionalized, control_flow, fx, origin  # noqa: F401  two register operators with fx

Run = Callable[[list[Any]], list[Any]]

_living: weakref.WeakSet[CompiledGraph] = weakref.WeakSet()
_living_lock = threading.Lock()  # a set that grows cannot be read by another thread


def reset() -> None:
    """Lets go of the programs of all compiled graphs: `torch._dynamo.reset()` calls it.

    Dynamo itself keeps many a graph alive, under a global name of the user's module. A graph that is called all the
    same, as a backward pass of before the reset, is compiled again.
    """
    with _living_lock:
        graphs = list(_living)
    for graph in graphs:
        graph.forget_programs()


class CompiledGraph:
    """A callable with AOTAutograd's boxed convention: it takes one list of arguments and empties it.

    Args:
        gm: the graph; symbolic sizes are ordinary int arguments of it.
        examples: fake tensors and SymInts, one per placeholder.
        static: numbers of the arguments whose memory does not change from call to call (parameters, buffers).
        visible: how many of the outputs the user sees; None for all of them.
        aliases: numbers of the outputs that must share the memory of an argument that they are a view of.
        updated: of a graph of a training step, numbers of the arguments that an optimizer updates between the steps;
            None for an inference graph.
        ends_step: nothing of the training step follows.
        region: what reports of its compiles name; by default the function that Dynamo is compiling.
    """

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        examples: Sequence[Any],
        static: frozenset[int] = frozenset(),
        visible: int | None = None,
        aliases: frozenset[int] = frozenset(),
        updated: frozenset[int] | None = None,
        ends_step: bool = False,
        region: origin.Region | None = None,
    ):
        self._boxed_call = True  # on the instance: Dynamo's wrappers copy its dictionary
        self._gm = gm
        self._static = static
        self._visible = visible
        self._updated = updated
        self._ends_step = ends_step
        self._aliases = aliases
        self.region = region or origin.region(gm)
        self._device = device_of(gm, examples)
        self._numbers = [i for i, example in enumerate(examples) if not isinstance(example, torch.Tensor)]
        # Dynamo's guards hold all sizes but the symbolic ones. A backward graph may have tensors of symbolic sizes
        # without having the symbols among its arguments.
        self._sized = [i for i, example in enumerate(examples) if _is_symbolic(example)]
        self._programs: dict[tuple, Run] = {}
        self._lock = threading.Lock()
        with _living_lock:
            _living.add(self)

    def forget_programs(self) -> None:
        """Lets go of all programs that it was compiled to."""
        self._programs.clear()

    @property
    def is_dynamic(self) -> bool:
        """Some sizes come with the arguments of each call."""
        return bool(self._numbers or self._sized)

    def __call__(self, arguments: list[Any]) -> list[Any]:
        key = ()
        if self._numbers:
            key = tuple([arguments[i] for i in self._numbers])
        if self._sized:
            key += tuple([arguments[i].shape for i in self._sized])
        run = self._programs.get(key)
        if run is None:
            run = self.prepare(arguments, key)
        return run(arguments)

    def prepare(self, arguments: Sequence[Any], key: tuple = ()) -> Run:
        """Traces and compiles for these arguments (fake ones will do), unless another thread has done so meanwhile."""
        with self._lock, disable_current_modes():  # Dynamo compiles under its fake mode
            run = self._programs.get(key)
            if run is None:
                run = self._programs[key] = self._compile(arguments, self._dropper(key))
                while len(self._programs) > programs.bound():  # those of training steps are programs of lazy mode
                    self._programs.pop(next(iter(self._programs)), None)
            return run

    @property
    def is_loading(self) -> bool:
        """Whether another thread still loads the program that it is prepared with."""
        run = self._programs.get(())
        return isinstance(run, DeviceRun) and run.is_loading

    def begin(self, arguments: Sequence[Any]) -> None:
        """Starts the first call with these arguments, for which the graph is prepared, where that can be done ahead."""
        run = self._programs.get(())
        if isinstance(run, DeviceRun):
            with disable_current_modes():
                run.begin(arguments)

    def _dropper(self, key: tuple) -> Callable[[], None]:
        """Lets go of the program for these sizes; keeps nothing of it alive."""
        compiled = weakref.ref(self)

        def drop() -> None:
            graph = compiled()
            if graph is not None:
                graph._programs.pop(key, None)

        return drop

    def _compile(self, arguments: Sequence[Any], drop: Callable[[], None]) -> Run:
        device = self._device()
        metrics.count("DynamoExtractCompiledGraph")
        try:
            program = fx.trace(self._gm, arguments, device, self._visible, self._aliases)
        except DataDependentError:
            if not interpreted.is_possible(self._gm, device):
                raise
            return interpreted.InterpretedRun(self._gm)
        if config.dynamo_debug():
            origin.show(self._gm, program)
        if device.torch_device.type != "xla":
            # what the user sees has torch's strides anyway; what is saved for the backward graph is free
            saved = frozenset(program.saved(self._visible))
            plan = CompilePlan(program.graph, saved, origin.scopes(program))
            return HostRun(program, self._executable(plan, program, drop), self._static)
        elsewhere = [
            number
            for number, argument in enumerate(arguments)
            if isinstance(argument, torch.Tensor) and argument.device.type != "xla"
        ]
        # else it may be a part of the program that it is in
        by_itself = self._updated is None and not (device.deferred or regions.is_tracing() or device.grid is not None)
        plan = CompilePlan(program.graph, None, origin.scopes(program))
        run = DeviceRun(
            program,
            lambda: self._executable(plan, program, drop),
            frozenset(elsewhere),
            self._updated,
            self._ends_step,
        )
        if by_itself:
            is_known = compiler.known(program.graph, None) is not None
            run.prepare(is_on_disk=not is_known and plan.place is not None and plan.place.is_taken())
        return run

    def _executable(self, plan: CompilePlan, program: fx.Program, drop: Callable[[], None]) -> compiler.Executable:
        executable = compiler.executable(plan.graph, plan.keep_layout, drop, plan)
        if executable.is_new:
            compiling.ready(executable, origin.origin(self.region, program))
        return executable


def _is_symbolic(example: Any) -> bool:
    return isinstance(example, torch.Tensor) and any(isinstance(size, torch.SymInt) for size in example.shape)


def device_of(gm: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[[], xla_devices.Device]:
    """Where the graph runs: on the xla device that its tensors name, else on the memory of the tensors it is given."""
    seen = {example.device for example in examples if isinstance(example, torch.Tensor)}
    for node in gm.graph.nodes:
        for leaf in tree_leaves(node.meta.get("val")):
            if isinstance(leaf, torch.Tensor):
                seen.add(leaf.device)
    xla = sorted((found for found in seen if found.type == "xla"), key=str)
    if len(xla) > 1:
        raise NotImplementedError(
            f"one compiled graph works on several xla devices ({', '.join(map(str, xla))}): "
            "compile one function per device"
        )
    if xla:
        return lambda: xla_devices.get(xla[0])
    other = next((found for found in seen if found.type != "cpu"), torch.device("cpu"))
    return lambda: xla_devices.host(other)
