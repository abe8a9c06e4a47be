"""Optimizers in compiled functions count their steps on the device.

Torch's optimizers count on the CPU, one number for each parameter, unless they are `capturable`. Where Dynamo compiles
one whose parameters are on CUDA it makes it so, before the state is there (`OptimizerVariable._set_capturable`). On xla
counters on the CPU would have to cross to the device and back in each step, and the step would wait for them.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._dynamo.variables.optimizer import OptimizerVariable

#: Those that torch lets go on outside of the compiled function: each of torch/optim/*.py has a list of the devices on
#: which it takes `capturable`, and with `foreach=True` fewer lists have xla.
CAPTURABLE = tuple(
    getattr(torch.optim, name) for name in ("Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop")
)


@functools.cache
def count_on_device() -> None:
    """Makes Dynamo treat optimizers of xla parameters as those of CUDA's."""
    set_capturable = OptimizerVariable._set_capturable

    def with_xla(self: OptimizerVariable, tx: Any) -> None:
        for group in self.value.param_groups:
            if _is_ours(self.value, group):
                group["capturable"] = True
        set_capturable(self, tx)

    OptimizerVariable._set_capturable = with_xla  # type: ignore[method-assign]


def _is_ours(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> bool:
    """Whether a group of parameters on xla has no state yet, and may have its counters there."""
    if not isinstance(optimizer, CAPTURABLE) or "capturable" not in group or group.get("foreach"):
        return False
    return all(p.device.type == "xla" and p not in optimizer.state for p in group["params"])
