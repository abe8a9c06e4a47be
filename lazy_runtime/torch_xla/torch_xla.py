"""The package's public functions. Each imports the runtime when it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..common import causes
from ..regions import TRACE_AFTER

causes.register(__file__, "user torch_xla.sync")


def device(index: int | None = None) -> torch.device:
    """The xla device with this index; without one, the calling thread's current device.

    A device that is asked for by its index is the thread's current one from then on, as in PyTorch/XLA: plain `xla`
    means it, as `lazy_runtime.sync()` does.

    Raises:
        IndexError: there is no such device; it is a RuntimeError, too.
    """
    from ..platform import xla_devices

    return xla_devices.choose(index)


def devices() -> list[torch.device]:
    """All xla devices of this process."""
    from ..platform import xla_devices

    return [found.torch_device for found in xla_devices.devices()]


def device_count() -> int:
    """How many xla devices this process has."""
    return len(devices())


def real_devices() -> list[str]:
    """What stands behind each xla device, as `CPU:0`, `CUDA:1`, `TPU:3`."""
    from ..platform import hardware, xla_devices

    return [f"{hardware.kind(found)}:{found.jax_device.id}" for found in xla_devices.devices()]


def sync(wait: bool = False, reset_scope: bool = True) -> None:
    """Executes everything that is pending on every xla device (a thread of `DataParallel`: on its own), and then runs
    the step's closures (`xm.add_step_closure`). Where several threads call it, each one's graph is a step of its own:
    what another of them has recorded stays pending until that thread calls it, or somebody reads a value.

    Args:
        wait: also wait until it has been executed; otherwise the call returns as soon as it is started.
        reset_scope: also count the parts of the program that `xp.Trace` names anew, from 1, outside of all of them.
    """
    from ..execution import mark_step

    mark_step.mark_step(wait, reset_scope)


def manual_seed(seed: int, device: torch.device | str | int | None = None) -> None:
    """Seeds the random numbers of one xla device, or of all of them.

    From then on the device has a random stream of its own. Without this call the stream follows `torch.manual_seed`.
    """
    from ..platform import xla_devices

    found = xla_devices.devices() if device is None else (xla_devices.get(device),)
    for each in found:
        each.random.seed(seed)


def compile(
    f: Callable[..., Any] | None = None,
    full_graph: bool | None = False,
    name: str | None = None,
    max_different_graphs: int | None = None,
    custom_compile_options: Mapping[str, bool | int | float | str] | None = None,
    trace_after: int | None = TRACE_AFTER,
) -> Any:
    """Makes each call of `f` one XLA program, also in eager mode: recorded, and executed at the end of the call.

    After `trace_after` calls with the same kinds of arguments, a training step that Dynamo can trace as one graph with
    its backward pass is traced, and again when something that it depends on has changed. From then on a call keeps the
    host for less time. What was pending before runs by itself first, so that it is no part of the program. Usable as a
    function, as a decorator with or without arguments, and (without `f`) as a context manager.

    Args:
        f: the function or module to compile.
        full_graph: raise if `f` reads a value, which would cut its graph in two.
        name: shown in errors, in reports (`PT_XLA_DEBUG_LEVEL`) and in dumps of the program; the function's own name
            by default.
        max_different_graphs: raise when the function has given more than this many different graphs.
        custom_compile_options: options of the XLA compiler for this program alone, by XLA's names
            (`xla_cpu_enable_fast_min_max`).
        trace_after: how many calls are recorded before the step is traced: 0 to trace it at its first call, None to
            record all. A trace takes seconds, and computes the last bits otherwise: with 0 or None a run that is
            resumed repeats one that went on.

    Raises:
        RuntimeError: the graph broke although `full_graph`, or there are too many different ones.
        ValueError: XLA knows no such option, or `trace_after` is negative.
    """
    from ..regions import compiling

    options = tuple(sorted((custom_compile_options or {}).items()))
    return compiling.compile(f, bool(full_graph), name, max_different_graphs, options, trace_after)


def set_custom_compile_options(options: Mapping[str, bool | int | float | str]) -> None:
    """Options of the XLA compiler for all programs that xla devices compile from now on, in place of those before.

    Options of a compiled function of its own (`compile(custom_compile_options=...)`) come first.

    Args:
        options: by XLA's names (`xla_cpu_enable_fast_min_max`); an empty dictionary for XLA's own.

    Raises:
        ValueError: XLA knows no such option; raised where the next program is compiled.
    """
    from ..execution import execute

    execute.options = {str(name): value for name, value in options.items()}


def step() -> Any:
    """`compile()` as a context manager around the code of one training step."""
    return compile()


def launch(
    fn: Callable[..., Any], args: tuple[Any, ...] = (), start_method: str = "spawn", debug_single_process: bool = False
) -> None:
    """Calls `fn(index, *args)` in one process per device: here where `torchrun` has started one for each, else in new
    ones.

    Args:
        start_method: see `xla_multiprocessing.spawn`.
        debug_single_process: in this process alone.
    """
    import torch.distributed as dist

    from ..processes import process_exit
    from . import runtime
    from .distributed import xla_multiprocessing

    if dist.is_torchelastic_launched():
        process_exit.with_launcher()
        fn(runtime.local_ordinal(), *args)
    else:
        xla_multiprocessing.spawn(fn, args, 1 if debug_single_process else None, start_method=start_method)
