"""How a call runs: on the CPU, lazily, and in eager mode. `dynamo` has the other two roads."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import lazy_runtime
from lazy_runtime.common import metrics
from lazy_runtime.platform import xla_devices
from lazy_runtime.torch_xla.experimental import eager_mode

from .arguments import CPU, XLA, Target
from .case import Case, Wrap
from .compare import Result, result_of

#: How many calls are recorded before they run as one program. Compiling one program of them takes a fraction of what
#: compiling each takes; a very large one takes more than that.
BATCH = 32


def without_wrap(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def attempt(case: Case, target: Target, wrap: Wrap = without_wrap) -> Result:
    """The call's result, read; or what it raised."""
    tree = record(case, target, wrap)
    if isinstance(tree, Result):
        return tree
    try:
        return result_of(tree.value, target.device, tree.random)
    except Exception as error:
        return Result(error=error.with_traceback(None))


class Recorded(NamedTuple):
    """What a call gave, not read yet, and whether it drew random numbers."""

    value: Any
    random: bool


def record(case: Case, target: Target, wrap: Wrap = without_wrap) -> Recorded | Result:
    """The call without a look at its values; a `Result` if it raised."""
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
    try:
        call = case.prepare(target)
        torch.manual_seed(0)
        before = torch.get_rng_state()
        value = call(wrap)
        return Recorded(value, not torch.equal(before, torch.get_rng_state()))
    except Exception as error:
        return Result(error=error.with_traceback(None))


class Recorder(TorchDispatchMode):
    """Collects the aten overloads that arrive below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.overloads: set[torch._ops.OpOverload] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.overloads.add(func)
        return func(*args, **(kwargs or {}))


def overloads(case: Case) -> set[torch._ops.OpOverload]:
    """What the function under test comes down to on the CPU."""
    recorder = Recorder()

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with recorder:
                return function(*args, **kwargs)

        return call

    record(case, CPU, wrap)
    return recorder.overloads


def lazy(cases: Sequence[Case]) -> Iterator[Result]:
    """All calls recorded, then one program of them; one by one where something raised. A call that reads a value
    raises what is wrong with an earlier one, which then passes.
    """
    for start in range(0, len(cases), BATCH):
        batch = cases[start : start + BATCH]
        trees = [record(case, XLA) for case in batch]
        raised = any(isinstance(tree, Result) for tree in trees)
        try:
            lazy_runtime.sync(wait=True)
            found = [_read(tree) for tree in trees]
        except Exception:
            raised = True
        del trees
        if raised:
            drop_pending()
            found = [alone(case) for case in batch]
        yield from found


def _read(tree: Recorded | Result) -> Result:
    return tree if isinstance(tree, Result) else result_of(tree.value, "xla", tree.random)


def alone(case: Case) -> Result:
    """One call, recorded and run."""
    tree = record(case, XLA)
    try:
        lazy_runtime.sync(wait=True)
        return _read(tree)
    except Exception as error:
        del tree
        drop_pending()
        return Result(error=error.with_traceback(None))


def drop_pending() -> None:
    """Runs what a failed program has left pending; what fails again is forgotten."""
    for _ in range(3):
        try:
            lazy_runtime.sync(wait=True)
            return
        except Exception:
            continue
    for device in xla_devices.devices():
        device.pending.clear()


def eager(cases: Sequence[Case]) -> Iterator[Result]:
    """Every operator as it is called."""
    for case in cases:
        eager_mode(True)
        try:
            yield attempt(case, XLA)
        finally:
            eager_mode(False)


def called() -> set[str]:
    """Counters of operators that were called as a fallback since the counters were cleared."""
    return {name for name in metrics.names() if name.startswith("aten::")}


def quiet() -> None:
    """Warnings are no results; torch's databases give many."""
    warnings.simplefilter("ignore")
