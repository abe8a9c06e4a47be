"""The end of a training step: when the optimizer has done its work, all that the step has deferred is executed."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from lazy_runtime.execution import execute
from lazy_runtime.platform import xla_devices
from lazy_runtime.regions import compiling


@functools.cache
def watch_optimizers() -> None:
    """From the first deferred call on, the return of any optimizer's `step` executes what is pending, if compiled calls
    are among it. Without it the device would idle until the next read or sync.
    """
    register_optimizer_step_post_hook(end)


def end(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    # within a region that is traced to be one program, by Dynamo or by `lazy_runtime.compile`, more may follow
    if torch.compiler.is_compiling() or compiling.is_tracing():
        return
    for device in xla_devices.devices():
        if device.deferred:
            execute.sync(device, wanted=())
